"""Tuning of the runs of a node: each is measured, followed by shadows, or served by a frozen plan."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omnireuse.engines.comfyui.calls import SamplerCall
from omnireuse.engines.comfyui.graph import conditions_of, content_of, sampler_name
from omnireuse.engines.comfyui.noise import RunNoise
from omnireuse.engines.comfyui.shadows import Measurement, SamplerShadows
from omnireuse.engines.comfyui.solver import Response, measured_response
from omnireuse.engines.comfyui.wrappers import POST, with_wrappers
from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.generation import Emit, Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.profiles.conditions import Conditions
from omnireuse.tuning.budget import budget_for
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entries import Entries, Entry
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.state import Tuning
from omnireuse.tuning.store import Store, folder
from omnireuse.tuning.switch import PICTURES

__all__ = ["SamplerTuner", "entries_in"]

logger = logging.getLogger("omnireuse")

INTERRUPT = "InterruptProcessingException"
"""ComfyUI's cancel, which is no error."""


@functools.cache
def entries_in(path: Path) -> Entries:
    """The entries of this process, for a folder of plans.

    They outlive a node: ComfyUI makes its model anew as often as one of its inputs changes.
    """
    return Entries(pictures=PICTURES, store=Store(path), command="the Omnireuse node of ComfyUI")


class SamplerTuner:
    """Chooses what each run of one patched model does."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy, self._entries = strategy, entries_in(folder())
        self._latest: Entry | None = None
        self._elsewhere = Tuning(state="measuring", wanted=PICTURES, reason="no run has begun yet")
        """Holds where the latest run has no configuration."""
        self._model: tuple[Any, Conditions] | None = None

    @property
    def tuning(self) -> Tuning:
        """The state of tuning for the configuration of the latest run."""
        return self._elsewhere if self._latest is None else self._latest.tuning

    def begin(
        self, executor: Any, call: SamplerCall, *, number: int, emit: Emit, untuned: str = ""
    ) -> Strategy | Measurement:
        """The strategy of a run, or its measurement.

        Args:
            untuned: why the run is not to be tuned; "" where it may be.
        """
        self._latest, guider = None, executor.class_obj
        try:
            found = untuned or self._found(guider, call)
        except Exception as error:  # the picture must not fail because tuning does
            found = f"the run cannot be told from others ({type(error).__name__}: {error})"
        if isinstance(found, str):
            if found != self._elsewhere.reason:
                self._elsewhere = Tuning(state="off", wanted=PICTURES, reason=found)
                logger.info("%s", self._elsewhere)
            return self._strategy
        entry, noise = found
        self._latest = entry
        if self._entries.is_whole(entry) and not entry.is_busy:
            self._go_on(entry, executor, is_done=False)
        if entry.tuning.state != "measuring" or entry.is_busy:
            return entry.strategy or self._strategy
        response = self._response(entry, executor, call)
        if response is None:
            return self._strategy
        return Measurement(response, Generation(FULL, noise.levels, number=number, emit=emit))

    def measure(self, executor: Any, call: SamplerCall, measurement: Measurement, proceed: Callable[[], Any]) -> Any:
        """Make a picture that is measured, and the shadows that are due after it."""
        entry, guider = self._latest, executor.class_obj
        assert entry is not None, "a run without a configuration is not measured"
        kept, options = call.kept(), guider.model_options
        self._entries.start(entry)
        try:
            guider.model_options = with_wrappers(options, measurement.wrappers)
            try:
                result = proceed()
            finally:
                guider.model_options = options
            if self._entries.learn(entry, measurement, measurement.full_run, (kept, measurement.response)):
                self._go_on(entry, executor, is_done=True)
        except Exception as error:
            # An interrupt is no error, and the pictures before it stay.
            self._entries.failed(entry, f"a picture has failed ({type(error).__name__})")
            raise
        finally:
            entry.is_busy = False
        return result

    def _found(self, guider: Any, call: SamplerCall) -> tuple[Entry, RunNoise] | str:
        """The entry of a run; in words why it has none."""
        if call.given.get("denoise_mask") is not None:
            return "runs with a mask are not tuned"
        if len(call.given.get("latent_shapes") or ()) > 1:
            return "runs with several kinds of latents are not tuned"
        if any("hooks" in each for group in call.conds.values() for each in group):
            return "runs whose conditions change the weights are not tuned"
        if len(call.sigmas) < 2:
            return "the run has no steps"
        sampling = guider.model_patcher.get_model_object("model_sampling")
        levels = RunNoise(call.sigmas.tolist(), sampling, derivative=True, sampler=sampler_name(call.sampler))
        start = RunStart(
            total=len(levels.sigmas), levels=levels.levels, scheduler=call.sampler, shape=tuple(call.noise.shape)
        )
        budget = budget_for(self._strategy.policy, start)
        if isinstance(budget, str):
            return budget
        if budget.aim:
            return "a tolerance is not tuned in ComfyUI: errors seen within the run decide"
        with self._entries.lock:
            return self._entries.find(self._configuration(guider, call, start), budget), levels

    def _configuration(self, guider: Any, call: SamplerCall, start: RunStart) -> Configuration:
        groups = {
            kind: [type(each.get("control")).__name__ if "control" in each else "plain" for each in group]
            for kind, group in call.conds.items()
        }
        inner = call.options.get("transformer_options", {})
        functions = {
            name: [getattr(each, "__qualname__", type(each).__name__) for each in _listed(value)]
            for name, value in call.options.items()
            if name.startswith(("sampler_", "model_function"))
        } | {name: sorted(map(str, inner.get(name, {}))) for name in ("patches", "patches_replace")}
        scales = {
            name: repr(float(value))
            for name, value in vars(guider).items()
            if type(value) in (int, float) and "seed" not in name
        }
        sampler = sampler_name(call.sampler)
        conditions = self._conditions_of(guider.model_patcher, sampler)
        return Configuration(
            pipeline=f"ComfyUI: {conditions.model}",
            conditions=conditions,
            scheduler=sampler,
            noises=tuple(round(level.coordinate, 4) for level in start.levels),
            call={
                "guider": type(guider).__name__,
                "sampler options": content_of(getattr(call.sampler, "extra_options", {})),
                "conditions": repr(groups),
                "functions": repr(functions),
                **scales,
            },
            shape=start.shape[1:],
        )

    def _conditions_of(self, model: Any, sampler: str) -> Conditions:
        key = getattr(model, "patches_uuid", None), sampler
        if self._model is None or self._model[0] != key or key[0] is None:
            found = conditions_of(model, sampler)
            if found.weights is None:
                raise UnsupportedModelError("the weights have no digest")
            self._model = key, found
        return self._model[1]

    def _response(self, entry: Entry, executor: Any, call: SamplerCall) -> Response | None:
        """The sampler's use of the model's outputs; None where weights cannot be fitted, or it is unknown."""
        if entry.calls:
            response: Response = entry.calls[0].replay[1]
            return response
        try:
            return measured_response(
                lambda wrappers: call.make(executor, wrappers),
                call.sigmas.tolist(),
                own_functions=len(call.options.get(POST, [])),
            )
        except UnsupportedModelError as error:
            why = f"no weights can be fitted for the sampler {sampler_name(call.sampler)}: {error}"
            self._entries.end(entry, "off", why)
        except Exception as error:  # the picture must not fail because measuring it does
            self._entries.failed(entry, f"{type(error).__name__}: {error}")
        return None

    def _go_on(self, entry: Entry, executor: Any, *, is_done: bool) -> None:
        """Make the shadows that are due. An interrupt ends them, and the run only where it has not been made yet."""
        try:
            self._entries.go_on(entry, SamplerShadows(executor))
        except BaseException as error:
            self._entries.begin_anew(entry, f"the shadows were interrupted ({type(error).__name__})")
            if not is_done or type(error).__name__ != INTERRUPT:
                raise


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
