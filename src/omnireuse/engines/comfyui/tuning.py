"""Tuning of the runs of a node: each is measured, followed by shadows, or served by a frozen plan."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from omnireuse.engines.comfyui.calls import SamplerCall
from omnireuse.engines.comfyui.graph import conditions_of, content_of, sampler_name
from omnireuse.engines.comfyui.noise import RunNoise
from omnireuse.engines.comfyui.solver import Response, measured_response
from omnireuse.engines.comfyui.wrappers import PARTS, PREDICT, SAMPLER, Wrappers, with_wrappers
from omnireuse.engines.loops import Loop, LoopShadows, LoopTuner
from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.run import RunStart
from omnireuse.loop.generation import Emit, Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.policies import ErrorControl
from omnireuse.profiles.conditions import Conditions
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entries import Entries, Entry
from omnireuse.tuning.loops import LoopRun, ShadowLoop
from omnireuse.tuning.recording import FULL
from omnireuse.tuning.state import Tuning
from omnireuse.tuning.store import Store, folder
from omnireuse.tuning.switch import PICTURES
from omnireuse.tuning.trials import Pausing

__all__ = ["SamplerTuner", "entries_in"]

logger = logging.getLogger("omnireuse")

INTERRUPT = "InterruptProcessingException"
"""ComfyUI's cancel, which is no error."""
_MISS = 1e-2
"""Share of the final latents that a sampler's outputs may leave unexplained."""


@functools.cache
def entries_in(path: Path) -> Entries:
    """The entries of this process, for a folder of plans.

    They outlive a node: ComfyUI makes its model anew as often as one of its inputs changes.
    """
    return Entries(pictures=PICTURES, store=Store(path), command="the Omnireuse node of ComfyUI")


@dataclass(frozen=True, kw_only=True)
class SamplerLoop(Loop):
    """A run of a sampler.

    Attributes:
        call: makes it again.
        noise: of its steps, for outputs d = (x − x0) / σ.
        response: the sampler's arithmetic; None before it is measured.
        guidance: class of the guider, and its numbers.
        conditions: finds those of its model.
    """

    call: SamplerCall
    noise: RunNoise
    response: Response | None = None
    guidance: Mapping[str, str]
    conditions: Callable[[], Conditions]

    @property
    def start(self) -> RunStart:
        return RunStart(
            total=len(self.noise.sigmas),
            levels=self.noise.levels,
            scheduler=self.response or self.call.sampler,
            shape=tuple(self.call.noise.shape),
        )

    def twin(self) -> SamplerLoop:
        return replace(self, response=copy.deepcopy(self.response))

    def given(self, step: int) -> dict[str, Any]:
        return {"return_dict": False}

    def untunable(self) -> str | None:
        call = self.call
        if call.given.get("denoise_mask") is not None:
            return "runs with a mask are not tuned"
        if len(call.given.get("latent_shapes") or ()) > 1:
            return "runs with several kinds of latents are not tuned"
        if any("hooks" in each for group in call.conds.values() for each in group):
            return "runs whose conditions change the weights are not tuned"
        return None

    def configuration(self, start: RunStart) -> Configuration:
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


class _Steps:
    """Has the steps of a sampler's run decided by another, in outputs d = (x − x0) / σ.

    Args:
        response: of the run, which is told the outputs; None where nobody asks it.
    """

    def __init__(self, run: LoopRun, sigmas: tuple[float, ...], response: Response | None) -> None:
        self.run, self._sigmas, self._response = run, sigmas, response
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
            self.run.branches = [(x - part) / sigma for part in self._parts]
            computed[id(output)] = x0
            return output

        used = self.run.step(compute, step, x, denoiser=0)
        if self._response is not None:
            self._response.step(used, x)
        return computed[id(used)] if id(used) in computed else x - sigma * used


class Measurement(_Steps):
    """Computes every step of one run, and keeps copies of what the model gives.

    Args:
        generation: of a strategy that computes every step; its events say that the run is measured.
    """

    def __init__(self, loop: SamplerLoop, generation: Generation) -> None:
        self.measured = loop.measured()
        super().__init__(self.measured, loop.noise.sigmas, None)
        self.loop, self.generation = loop, generation

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        return {**super().wrappers, SAMPLER: self.sample}

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        if self._step == len(self._sigmas):
            self.measured.recording.fail(f"the sampler calls the model more than {self._step} times", is_permanent=True)
            x0: torch.Tensor = executor(x, timestep, options, seed)
            return x0
        self.generation.pass_by(replace(self.generation.decide(), reason="measuring"))
        self.generation.advance()
        return super().predict(executor, x, timestep, options, seed)

    def sample(self, executor: Any, *args: Any) -> Any:
        """The solver's run."""
        result = executor(*args)
        self.measured.end(result)
        self.measured.recording.keep(self._check, result)
        return result

    def _check(self, final: torch.Tensor) -> None:
        """Refuse a run whose latents are not those that its outputs lead to: something else changes them."""
        steps, twin = self.measured.recording.steps, copy.deepcopy(self.loop.response)
        assert twin is not None, "it was measured first"
        for step in steps:
            assert step.output is not None and step.sample is not None  # noqa: PT018  # one fact
            (reached,) = twin.step(step.output, step.sample)
        missed = (reached - final.to(reached.device)).norm() / final.norm()
        if not missed <= _MISS:
            self.measured.recording.fail("other nodes change the sampler's latents on the way", is_permanent=True)


class SamplerTuner(LoopTuner):
    """Chooses what each run of one patched model does."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(entries_in(folder()))
        self._strategy = strategy
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
        self._latest = None
        if isinstance(self._strategy.policy, ErrorControl):
            untuned = "a tolerance is not tuned in ComfyUI: errors seen within the run decide"
        elif len(call.sigmas) < 2:
            untuned = "the run has no steps"
        loop = self._loop(executor.class_obj, call) if not untuned else None
        entry = untuned if loop is None else self.find(self._strategy.policy, loop)
        if isinstance(entry, str) or loop is None:
            if entry != self._elsewhere.reason:
                self._elsewhere = Tuning(state="off", wanted=PICTURES, reason=str(entry))
                logger.info("%s", self._elsewhere)
            return self._strategy
        self._latest = entry
        if self.entries.is_whole(entry) and not entry.is_busy:
            self._go_on(entry, executor, is_done=False)
        if entry.tuning.state != "measuring" or entry.is_busy:
            return entry.strategy or self._strategy
        response = self._response(entry, executor, call)
        if response is None:
            return self._strategy
        generation = Generation(FULL, loop.noise.levels, number=number, emit=emit)
        return Measurement(replace(loop, response=response), generation)

    def serve_measured(self, executor: Any, measurement: Measurement, proceed: Callable[[], Any]) -> Any:
        """Make a picture that is measured, and the shadows that are due after it."""
        entry, guider, loop = self._latest, executor.class_obj, measurement.loop
        assert entry is not None, "a run without a configuration is not measured"
        options, kept = guider.model_options, replace(loop.twin(), call=loop.call.kept())

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
        """The sampler's use of the model's outputs; None where weights cannot be fitted, or it is unknown."""
        if entry.calls:
            response: Response = entry.calls[0].replay.response
            return response
        try:
            return measured_response(call.sampler, call.sigmas.tolist(), executor.class_obj.model_patcher)
        except UnsupportedModelError as error:
            why = f"no weights can be fitted for the sampler {sampler_name(call.sampler)}: {error}"
            self.entries.end(entry, "off", why)
        except Exception as error:  # the picture must not fail because measuring it does
            self.entries.failed(entry, f"{type(error).__name__}: {error}")
        return None

    def _go_on(self, entry: Entry, executor: Any, *, is_done: bool) -> None:
        """Make the shadows that are due. An interrupt ends them, and the run only where it has not been made yet."""

        def made_again(loop: SamplerLoop, run: ShadowLoop) -> Pausing[torch.Tensor]:
            yield
            return loop.call.make(executor, _Steps(run, loop.noise.sigmas, loop.response).wrappers)

        try:
            self.entries.go_on(entry, LoopShadows(made_again))
        except BaseException as error:
            self.entries.begin_anew(entry, f"the shadows were interrupted ({type(error).__name__})")
            if not is_done or type(error).__name__ != INTERRUPT:
                raise


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
