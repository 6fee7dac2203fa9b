"""Tuning of the runs of a node: each is measured, followed by shadows, or served by a frozen plan."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from omnireuse.arguments.tune import PICTURES
from omnireuse.engines.comfyui.calls import SamplerCall
from omnireuse.engines.comfyui.graph import conditions_of, sampler_name
from omnireuse.engines.comfyui.measuring import Measurement, SamplerLoop, SamplerSteps
from omnireuse.engines.comfyui.noise import RunNoise
from omnireuse.engines.comfyui.solver import Response, measured_response
from omnireuse.engines.comfyui.wrappers import with_wrappers
from omnireuse.engines.loops import LoopShadows, LoopTuner
from omnireuse.engines.settings import RequestPlan
from omnireuse.errors import OmniReuseError, UnsupportedModelError
from omnireuse.loop.generation import Emit, Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.policies import ErrorControl
from omnireuse.profiles.conditions import Conditions
from omnireuse.tuning.entry import Entry
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.shadows import Beside
from omnireuse.tuning.store import Store, folder
from omnireuse.tuning.trials import Pausing

__all__ = ["SamplerTuner", "registry_in"]

logger = logging.getLogger("omnireuse")

INTERRUPT = "InterruptProcessingException"
"""ComfyUI's cancel, which is no error."""


@functools.cache
def registry_in(path: Path) -> PlanRegistry:
    """The registry of this process, for a folder of plans.

    It outlives a node: ComfyUI makes its model anew as often as one of its inputs changes.
    """
    return PlanRegistry(pictures=PICTURES, store=Store(path), command="the Omnireuse node of ComfyUI")


class SamplerTuner(LoopTuner):
    """Chooses what each run of one patched model does.

    Args:
        plan: the untuned one, which computes not every step.
    """

    def __init__(self, plan: RequestPlan) -> None:
        super().__init__(registry_in(folder()))
        self._plan = plan
        self._model: tuple[Any, Conditions] | None = None

    def begin(
        self, executor: Any, call: SamplerCall, *, number: int, emit: Emit, untuned: str = ""
    ) -> Strategy | Measurement | None:
        """The strategy of a run, or its measurement.

        Args:
            untuned: why the run is not to be tuned; "" if it may be.
        """
        strategy = self._plan.strategy
        if not untuned and strategy is not None and isinstance(strategy.policy, ErrorControl):
            untuned = "a tolerance is not tuned in ComfyUI: errors seen within the run decide"
        elif len(call.sigmas) < 2:
            untuned = "the run has no steps"
        if untuned:
            self.pass_by(untuned)
            return strategy
        loop, responses = self._loop(executor.class_obj, call), list[Response]()

        def may_measure(entry: Entry) -> bool:
            if (response := self._response(entry, executor, call)) is not None:
                responses.append(response)
            return bool(responses)

        plan, entry = self.choose(
            self._plan, loop, lambda entry: self._go_on(entry, executor, is_done=False), may_measure
        )
        if entry is None:
            return plan.strategy
        generation = Generation(FULL, loop.noise.levels, number=number, emit=emit)
        return Measurement(replace(loop, response=responses.pop()), generation)

    def serve_measured(self, executor: Any, measurement: Measurement, proceed: Callable[[], Any]) -> Any:
        """Make a picture that is measured, and the shadows that are due after it."""
        entry, guider, loop = self._latest, executor.class_obj, measurement.loop
        assert entry is not None, "a run without a configuration is not measured"
        # What is kept outlives the model, and must not hold it.
        options, kept = guider.model_options, replace(loop.twin(), call=loop.call.kept(), conditions=None)

        def with_measurement() -> Any:
            guider.model_options = with_wrappers(options, measurement.wrappers)
            try:
                return proceed()
            finally:
                guider.model_options = options

        return self.measure(
            entry,
            kept,
            measurement.measured,
            with_measurement,
            lambda entry: self._go_on(entry, executor, is_done=True),
        )

    def _loop(self, guider: Any, call: SamplerCall) -> SamplerLoop:
        sampling, sampler = guider.model_patcher.get_model_object("model_sampling"), sampler_name(call.sampler)
        scales = {
            name: repr(float(value))
            for name, value in vars(guider).items()
            if type(value) in (int, float) and "seed" not in name
        }
        return SamplerLoop(
            call=call,
            noise=RunNoise(call.sigmas.tolist(), sampling, derivative=True, sampler=sampler),
            guidance={"guider": type(guider).__name__, **scales},
            conditions=lambda: self._conditions_of(guider.model_patcher, sampler),
        )

    def _conditions_of(self, model: Any, sampler: str) -> Conditions:
        key = getattr(model, "patches_uuid", None), sampler
        if self._model is None or self._model[0] != key or key[0] is None:
            self._model = key, conditions_of(model, sampler)
        return self._model[1]

    def _response(self, entry: Entry, executor: Any, call: SamplerCall) -> Response | None:
        """The sampler's use of the model's outputs; None if weights cannot be fitted, or it is unknown."""
        if entry.calls:
            response: Response = entry.calls[0].replay.response
            return response
        try:
            with self._registry.own_work():
                return measured_response(call.sampler, call.sigmas.tolist(), executor.class_obj.model_patcher)
        except UnsupportedModelError as error:
            why = f"no weights can be fitted for the sampler {sampler_name(call.sampler)}: {error}"
            entry.end("off", why)
        except OmniReuseError as error:  # the picture must not fail because measuring it does
            entry.failed(error)
        return None

    def _go_on(self, entry: Entry, executor: Any, *, is_done: bool) -> None:
        """Make the shadows that are due. An interrupt ends them, and the run only if it has not been made yet."""

        def made_again(loop: SamplerLoop, run: Beside) -> Pausing[torch.Tensor]:
            yield
            return loop.call.make(executor, SamplerSteps(run, loop.noise.sigmas, loop.response).wrappers)

        try:
            entry.go_on(LoopShadows(made_again))
        except BaseException as error:
            if not is_done or type(error).__name__ != INTERRUPT:
                raise
