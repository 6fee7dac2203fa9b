"""The requests of vllm-omni as tuning reads them: in calls of a native pipeline, and alone in waves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from omnireuse.base.validation import is_number
from omnireuse.errors import NotTunableError
from omnireuse.hooks.run import RunStart
from omnireuse.pipelines.call_arguments import Calls
from omnireuse.tuning.configuration import Configuration
from omnireuse_engines.waves import WaveLoop

__all__ = ["RequestCalls", "RequestLoop", "is_warm_up"]


class RequestCalls(Calls):
    """Calls whose argument is vllm-omni's `DiffusionRequestBatch`. Requests of a batch share their guidance."""

    def arguments(self, pipeline: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The guidance scales of the first request, and whether it has a negative prompt."""
        requests = _requests(args, kwargs)
        return _scales(requests[0].sampling_params, requests[0].prompt) if requests else {}

    def untunable(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """A request with an adapter is not measured: trial runs run beside later requests, which have others."""
        requests = _requests(args, kwargs)
        if not requests:
            return "the call has no request"
        return next((why for each in requests if (why := _untunable(each.sampling_params)) is not None), None)


class RequestLoop(WaveLoop):
    """The loop of a request of a wave."""

    def check(self) -> None:
        if (why := _untunable(self.state.sampling)) is not None:
            raise NotTunableError(why)

    def configuration(self, start: RunStart) -> Configuration:
        return Configuration.of(self.pipeline, start, _scales(self.state.sampling, self.state.prompt))


def _scales(sampling: Any, prompt: Any) -> dict[str, float]:
    """The guidance scales of a request, by name, and 1 for a negative prompt or 0 for none."""
    given = {**vars(sampling), **(sampling.extra_args or {})}
    if not given.get("guidance_scale_provided", True):
        given.pop("guidance_scale", None)
    found = {
        name: float(value)
        for name, value in given.items()
        if name.endswith("_scale") and ("guidance" in name or "cfg" in name) and is_number(value)
    }
    negative = prompt.get("negative_prompt") if isinstance(prompt, Mapping) else None
    return {**found, "negative_prompt": float(negative is not None)}


def _untunable(sampling: object) -> str | None:
    """Why a request cannot be measured or known beforehand, in words; None if it can."""
    return None if getattr(sampling, "lora_request", None) is None else "requests with an adapter are not tuned"


def is_warm_up(request_id: str | None) -> bool:
    """Whether a request is the engine's own, which warms the model up before a server answers."""
    requests = import_module("vllm_omni.diffusion.request").OmniDiffusionRequest
    return bool(requests.is_dummy_run_request_id(request_id))


def _requests(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    batch = args[0] if args else next(iter(kwargs.values()), None)
    found: Sequence[Any] = getattr(batch, "requests", None) or ([batch] if hasattr(batch, "sampling_params") else [])
    return found
