"""Tuning of the runs of a node: each is measured, followed by trial runs, or served by a frozen plan."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from omnireuse import ErrorControl, Generation, Strategy
from omnireuse.arguments.tune import PICTURES
from omnireuse.errors import NotTunableError, OmniReuseError, UnsupportedModelError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.events import Event
from omnireuse.loop.stepper import Stepper, stepped
from omnireuse.profiles.conditions import Conditions
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entry import TuningEntry
from omnireuse.tuning.loops import LoopTuner, MeasuredLoop, RepeatableLoop, RequestPlan
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.registry import PlanRegistry
from omnireuse.tuning.store import Store, folder
from omnireuse.tuning.trials import Pausing
from omnireuse_engines.comfyui.calls import SamplerCall, conditions_of, content_of, sampler_name
from omnireuse_engines.comfyui.noise import RunNoise
from omnireuse_engines.comfyui.solver import Response, measured_response
from omnireuse_engines.comfyui.wrappers import PARTS, PREDICT, SAMPLER, Wrappers, with_wrappers

__all__ = ["Measurement", "SamplerTuner", "registry_in"]

INTERRUPT = "InterruptProcessingException"
"""ComfyUI's cancel, which is no error."""
_MISS = 1e-2
"""Share of the final latents that a sampler's outputs may leave unexplained."""


@dataclass(kw_only=True)
class SamplerLoop(RepeatableLoop):
    """A run of a sampler. ComfyUI's executor of a run of an equal model makes it again.

    Attributes:
        call: makes it again.
        noise: of its steps, for outputs d = (x − x0) / σ.
        response: the sampler's arithmetic; None before it is measured.
        guidance: class of the guider, and its numbers.
        conditions: finds those of its model, which it holds; None for a run that is made again.
    """

    call: SamplerCall
    noise: RunNoise
    response: Response | None = None
    guidance: Mapping[str, str]
    conditions: Callable[[], Conditions] | None

    @property
    def start(self) -> RunStart:
        return RunStart(
            total=len(self.noise.sigmas),
            levels=self.noise.levels,
            scheduler=self.response or self.call.sampler,
            shape=tuple(self.call.noise.shape),
        )

    def twin(self) -> SamplerLoop:
        return replace(self, call=self.call.kept(), response=copy.deepcopy(self.response), conditions=None)

    def run(self, stepper: Stepper, host: object) -> Pausing[torch.Tensor]:
        yield
        return self.call.make(host, SamplerSteps(stepper, self.noise.sigmas, self.response).wrappers)

    def check(self) -> None:
        call = self.call
        if call.given.get("denoise_mask") is not None:
            raise NotTunableError("runs with a mask are not tuned")
        if len(call.given.get("latent_shapes") or ()) > 1:
            raise NotTunableError("runs with several kinds of latents are not tuned")
        if any("hooks" in each for group in call.conds.values() for each in group):
            raise NotTunableError("runs whose conditions change the weights are not tuned")

    def configuration(self, start: RunStart) -> Configuration:
        assert self.conditions is not None, "only a run that begins is looked up"
        call, sampler, conditions = self.call, sampler_name(self.call.sampler), self.conditions()
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
        return Configuration(
            pipeline=f"ComfyUI: {conditions.model}",
            conditions=conditions,
            scheduler=sampler,
            noises=tuple(round(level.coordinate, 4) for level in start.levels),
            call={
                "sampler options": content_of(getattr(call.sampler, "extra_options", {})),
                "conditions": repr(groups),
                "functions": repr(functions),
                **self.guidance,
            },
            shape=start.shape[1:],
        )


class SamplerSteps:
    """Has the steps of a sampler's run decided by another, in outputs d = (x − x0) / σ.

    Args:
        response: of the run, which is told the outputs; None if nobody asks it.
    """

    def __init__(self, run: Stepper, sigmas: tuple[float, ...], response: Response | None) -> None:
        self._run, self._sigmas, self._response = run, sigmas, response
        self._step, self._parts = 0, list[torch.Tensor]()

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        """By the kinds of ComfyUI's `WrappersMP`."""
        return {PREDICT: self.predict, PARTS: self.parts}

    def parts(self, executor: Any, model: Any, conds: Any, x: Any, timestep: Any, options: Any) -> Any:
        """The calls of the model for all parts of guidance."""
        found = executor(model, conds, x, timestep, options)
        self._parts += [x0 for x0, condition in zip(found, conds, strict=True) if condition is not None]
        return found

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        """A call of the model by the solver."""
        step, sigma, computed = self._step, self._sigmas[self._step], dict[int, torch.Tensor]()
        self._step += 1

        def compute() -> torch.Tensor:
            self._parts.clear()
            x0 = executor(x, timestep, options, seed)
            output: torch.Tensor = (x - x0) / sigma
            for part in self._parts:
                self._run.see(0, (x - part) / sigma)
            computed[id(output)] = x0
            return output

        used = stepped(self._run, compute, step, x, given={"return_dict": False})
        if self._response is not None:
            self._response.step(used, x)
        return computed[id(used)] if id(used) in computed else x - sigma * used


class Measurement(SamplerSteps):
    """Computes every step of one run, and keeps copies of what the model gives.

    Args:
        plan: of a run that is measured.
        generation: of a strategy that computes every step; its events say that the run is measured.
    """

    def __init__(self, plan: RequestPlan, generation: Generation) -> None:
        self.measured: MeasuredLoop = plan.measured
        assert isinstance(self.measured.loop, SamplerLoop), "it was chosen for one"
        super().__init__(self.measured, self.measured.loop.noise.sigmas, None)
        self.plan, self.generation, self._response_before = plan, generation, self.measured.loop.response

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        return {**super().wrappers, SAMPLER: self.sample}

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        if self._step == len(self._sigmas):
            self.measured.fail(NotTunableError(f"the sampler calls the model more than {self._step} times"))
            x0: torch.Tensor = executor(x, timestep, options, seed)
            return x0
        self.generation.record_computed(replace(self.generation.decide(), reason="measuring"))
        self.generation.advance()
        return super().predict(executor, x, timestep, options, seed)

    def sample(self, executor: Any, *args: Any) -> Any:
        """The solver's run."""
        result = executor(*args)
        self.measured.arrived(result)
        self.measured.keep(self._check, result)
        return result

    def _check(self, final: torch.Tensor) -> None:
        """Refuse a run whose latents are not those that its outputs lead to: something else changes them."""
        recording, twin = self.measured, copy.deepcopy(self._response_before)
        assert twin is not None, "it was measured first"
        reached: Any = recording.steps[0].sample
        outputs: list[Any] = [step.output for step in recording.steps]
        for output in outputs:
            (reached,) = twin.step(output, reached)
        missed = (reached - final.to(reached.device)).norm() / final.norm()
        if not missed <= _MISS:
            recording.fail(NotTunableError("other nodes change the sampler's latents on the way"))


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


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
        self, executor: Any, call: SamplerCall, *, number: int, emit: Callable[[Event], None], untuned: str = ""
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
            self.leave_untuned(untuned)
            return strategy
        self._registry.own_work.emit = emit
        try:
            loop = self._registry.own_work.of(self._loop, executor.class_obj, call)
        except OmniReuseError as error:
            self.leave_untuned(error)
            return strategy
        plan = self.choose(self._plan, loop, executor)
        if plan.measured is None:
            return plan.strategy
        levels = plan.measured.loop.start.levels
        return Measurement(plan, Generation(FULL, levels, number=number, emit=emit))

    def serve_measured(self, executor: Any, measurement: Measurement, proceed: Callable[[], Any]) -> Any:
        """Make a picture that is measured, and the trial runs that are due after it."""
        guider = executor.class_obj
        options = guider.model_options
        with self.measuring(measurement.plan, executor):
            guider.model_options = with_wrappers(options, measurement.wrappers)
            try:
                return proceed()
            finally:
                guider.model_options = options

    def may_measure(self, entry: TuningEntry, loop: RepeatableLoop, host: Any) -> bool:
        """Whether the sampler's use of the model's outputs is known, which the loop is told."""
        assert isinstance(loop, SamplerLoop), "it was given to `choose`"
        if entry.calls:
            loop.response = entry.calls[0].replay.response
            return True
        call = loop.call
        try:
            with self._registry.own_work():
                loop.response = measured_response(call.sampler, call.sigmas.tolist(), host.class_obj.model_patcher)
        except UnsupportedModelError as error:
            why = f"no weights can be fitted for the sampler {sampler_name(call.sampler)}: {error}"
            entry.end("off", why)
        except OmniReuseError as error:  # the picture must not fail because measuring it does
            entry.failed(error)
        return loop.response is not None

    def go_on(self, entry: TuningEntry, host: object) -> None:
        """Make the trial runs that are due. An interrupt ends them, and the run only if it has not been made yet."""
        is_made = entry.is_busy
        try:
            super().go_on(entry, host)
        except BaseException as error:
            if not is_made or type(error).__name__ != INTERRUPT:
                raise

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

    def _conditions_of(self, model: object, sampler: str) -> Conditions:
        key = getattr(model, "patches_uuid", None), sampler
        if self._model is None or self._model[0] != key or key[0] is None:
            self._model = key, conditions_of(model, sampler)
        return self._model[1]
