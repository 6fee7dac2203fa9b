"""The runs of a comparison: a pipeline, prompts and noise, and the making and judging of pictures."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from omnireuse.errors import ConfigError
from omnireuse.hooks.denoisers import denoisers_of
from omnireuse.pipelines import Caller, Picture, Signature, Source, is_modular, refuse_reserved, without_bar

__all__ = ["GUIDANCE", "Score", "Workload", "call_text", "guided_call", "is_distilled", "workloads_of"]

GUIDANCE = ("true_cfg_scale", "guidance_scale")
"""Names of the argument that sets guidance. If a pipeline has both, the second belongs to a distilled model, whose
denoiser embeds it, and costs no second branch."""

Score: TypeAlias = "Callable[[Picture, Picture, str], float]"
"""(picture, that of the full run, prompt) -> score, beside PSNR and SSIM."""

SET_HERE = {
    "num_inference_steps": "steps= says how many the full run has, and baselines take fewer",
    "callback_on_step_end": "what a method keeps is read after every step",
}
"""Arguments of the call that a comparison sets itself, beside those that are always set, and why."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One pipeline at one number of steps and one guidance, with its prompts.

    Args:
        steps: denoising steps of the full run.
        guidance: for the record; `call` holds what sets it.
        seed: of the first prompt's noise; the others count on from it.
        call: arguments of every call beside prompt, steps and noise.
        scores: further scores of each picture, by name.
        calibration: prompts that methods may calibrate themselves on, none of `prompts`; without them, methods that
            need a calibration are left out with an error.
        calibration_seed: of the first of those prompts' noise.
        as_pictures: from what the call returns to one array a prompt, (height, width, channels) in 0…1, a clip with its
            frames first; None if the result is read as pipelines of diffusers return it.

    Raises:
        ConfigError: no prompts, prompts that are both calibrated on and compared, or an argument of the call that is
            set here.
        UnknownNameError: an argument that the call does not take.
    """

    name: str
    pipeline: Any
    steps: int
    guidance: float
    prompts: tuple[str, ...]
    seed: int
    call: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Score] = field(default_factory=dict)
    calibration: tuple[str, ...] = ()
    calibration_seed: int = 0
    as_pictures: Callable[[Any], Any] | None = None
    _caller: Caller = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("Workload(prompts): prompts must hold at least one")
        if shared := set(self.prompts) & set(self.calibration):
            must = "calibration must hold none of the prompts that are compared"
            raise ConfigError(f"Workload(calibration): {must}, got {min(shared)!r}")
        refuse_reserved("compare", self.call, **SET_HERE)
        caller = Caller(self.pipeline, self.prompts, call=self.call, seed=self.seed, pictures=self.as_pictures)
        object.__setattr__(self, "_caller", caller)

    def pictures(self, numbers: Sequence[int], steps: int, *, strict: bool = False, **extra: Any) -> list[Picture]:
        """One picture for each of these prompts, all in one call.

        Args:
            strict: whether values outside of 0…1 are refused, as in the full run, or clipped.
        """
        with without_bar(self.pipeline):
            return self._caller.pictures(numbers, strict=strict, num_inference_steps=steps, **extra)

    def accepts(self, argument: str) -> bool:
        """Whether the pipeline's call has an argument of this name."""
        return argument in self._caller.signature.defaults


def workloads_of(
    source: Source, *, steps: Sequence[int], guidance: Sequence[float], call: Mapping[str, Any], **fields: Any
) -> list[Workload]:
    """A workload for each number of steps and each strength of guidance, on one pipeline.

    Args:
        guidance: strengths, 1 for none; empty for the pipeline's own.
    """
    refuse_reserved("compare", call, **SET_HERE)
    if not steps:
        raise ConfigError("compare(steps=[]): steps must hold at least one number")
    for count in steps:
        if not isinstance(count, int) or count < 2:
            raise ConfigError(f"compare(steps={count!r}): steps must be whole numbers of at least 2")
    pipeline = source.load()
    calls = [(strength, {**call, **guided_call(pipeline, strength)}) for strength in guidance]
    fields |= {"name": source.name(pipeline), "pipeline": pipeline}
    return [
        Workload(steps=count, guidance=strength, call=own, **fields)
        for count in steps
        for strength, own in calls or [(_own_guidance(pipeline, call), dict(call))]
    ]


def guided_call(pipeline: Any, guidance: float) -> dict[str, Any]:
    """The arguments that sample with classifier-free guidance of this strength; 1 is none."""
    known, name = Signature.of(pipeline).defaults, _guidance_argument(pipeline)
    if name is None:
        remedy = "set its guider instead, and leave guidance out" if is_modular(pipeline) else "leave guidance out"
        takes = f"{type(pipeline).__name__} takes neither {' nor '.join(GUIDANCE)}"
        raise ConfigError(f"compare(guidance={guidance:g}): {takes}; {remedy}")
    has_branch = "negative_prompt" in known and guidance > 1.0 and not is_distilled(pipeline)
    return {name: guidance, **({"negative_prompt": ""} if has_branch else {})}


def is_distilled(pipeline: Any) -> bool:
    """Whether guidance is distilled into a denoiser, as in Flux.1-dev and HunyuanVideo: it embeds the scale."""
    return any(
        getattr(getattr(denoiser, "config", None), "guidance_embeds", False) for denoiser in denoisers_of(pipeline)
    )


def _guidance_argument(pipeline: Any) -> str | None:
    names = GUIDANCE[::-1] if is_distilled(pipeline) else GUIDANCE
    return next((name for name in names if name in Signature.of(pipeline).defaults), None)


def _own_guidance(pipeline: Any, call: Mapping[str, Any]) -> float:
    """The guidance that the pipeline samples with by itself; 1 if it does not say."""
    defaults, name = Signature.of(pipeline).defaults, _guidance_argument(pipeline)
    found = getattr(getattr(pipeline, "guider", None), "guidance_scale", 1.0)
    if name is not None:
        found = call.get(name, defaults[name])
    return float(found) if isinstance(found, (int, float)) else 1.0


def call_text(call: Mapping[str, Any]) -> str:
    """The arguments of a pipeline's call as a text that is equal in every process.

    Raises:
        ConfigError: an argument that cannot be pickled, so that no other process can have it.
    """
    return json.dumps(call, sort_keys=True, default=_digest)


def _digest(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(content).hexdigest()[:16]}"
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"compare(call=…): arguments of the call must be picklable, got {type(value).__name__} ({error})"
        ) from error
