"""Full runs of a sampler that tuning measures, and the runs beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from omnireuse.engines.comfyui.graph import sampler_name
from omnireuse.engines.comfyui.sampling import SamplingRun, active_conditions
from omnireuse.engines.comfyui.solver import Response
from omnireuse.engines.comfyui.wrappers import PARTS, PREDICT, SAMPLER, Wrappers
from omnireuse.errors import StateError
from omnireuse.loop.generation import Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.fit import LedRun, WeightFit
from omnireuse.planning.path import OutputProducts, Path
from omnireuse.policies import Steps
from omnireuse.tuning.full_run import FullRun, replayed_steps
from omnireuse.tuning.recording import Keeper
from omnireuse.tuning.trials import MeasuredCall, Shadow

__all__ = ["Leader", "Measurement", "SamplerShadows", "SolverPath"]


@dataclass
class SolverPath(Path):
    """The path of a full run of a sampler. Outputs are d = (x − x0) / σ; `latents` holds the last ones only.

    Attributes:
        outputs: of all steps, after guidance.
    """

    outputs: list[torch.Tensor] = field(default_factory=list)


class PartsWatcher:
    """Sees the outputs of guidance's parts in each call of the model."""

    def __init__(self) -> None:
        self._parts: list[torch.Tensor] = []
        """The present call's parts."""

    def parts(self, executor: Any, model: Any, conds: Any, x: Any, timestep: Any, options: Any) -> Any:
        """The calls of the model for all parts of guidance."""
        found = executor(model, conds, x, timestep, options)
        self._parts += [x0 for x0, condition in zip(found, conds, strict=True) if condition is not None]
        return found


class Leader(PartsWatcher):
    """Leads one run along the path of its full run.

    Args:
        first_gap: the first step that is not computed; calls before it are not made where the path knows them.

    Attributes:
        computed: calls of the model that were made.
    """

    def __init__(self, run: LedRun, path: SolverPath, response: Response, first_gap: int) -> None:
        super().__init__()
        self._run, self._path, self._response = run, path, response
        self._replayed = path.calls[:first_gap]
        self._off: list[torch.Tensor] = []
        self.computed = 0

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        """By the kinds of ComfyUI's `WrappersMP`."""
        return {PREDICT: self.predict, PARTS: self.parts}

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        """A call of the model by the solver: computed, or forecast by the weights so far."""
        self._parts.clear()
        step = self._run.index
        sigma, full = self._response.sigmas[step], self._path.outputs[step].to(x.device)
        parts: list[torch.Tensor] = []
        x0: torch.Tensor | None = None
        output = torch.zeros_like(full)
        if step < len(self._replayed):
            *parts, output = (each.to(x.device, copy=True) for each in self._replayed[step])
        elif self._run.computes:
            self.computed += 1
            x0 = executor(x, timestep, options, seed)
            output = (x - x0) / sigma
            parts = [(x - part) / sigma for part in self._parts]
        used = self._run.step(parts or None, output, lambda: self._response.aim(self._off, full))
        self._off.append(used - full)
        return x0 if used is output and x0 is not None else x - sigma * used


class Measurement(PartsWatcher, Keeper):
    """Computes every step of one run, and keeps copies of what the model gives.

    Args:
        generation: of a strategy that computes every step; its events say that the run is measured.
    """

    def __init__(self, response: Response, generation: Generation) -> None:
        PartsWatcher.__init__(self)
        Keeper.__init__(self, is_bounded=True)
        self.generation = generation
        self.response = response
        self._outputs, self._by_part = list[torch.Tensor](), list[list[torch.Tensor]]()
        self._final: torch.Tensor | None = None

    @property
    def wrappers(self) -> Mapping[str, Wrappers]:
        """By the kinds of ComfyUI's `WrappersMP`."""
        return {PREDICT: self.predict, PARTS: self.parts, SAMPLER: self.sample}

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        """A call of the model by the solver: the computed x0 itself."""
        self._parts.clear()
        x0: torch.Tensor = executor(x, timestep, options, seed)
        if self.generation.index < len(self.response.sigmas):
            choice = self.generation.decide()
            self.generation.pass_by(replace(choice, reason="measuring"))
            self.generation.advance()
        self.keep(self._note, x, x0)
        return x0

    def sample(self, executor: Any, *args: Any) -> Any:
        """The solver's run."""
        result = executor(*args)
        if self.failure is None and len(self._outputs) == len(self.response.sigmas):
            self._final = result.clone()
        return result

    def _note(self, x: torch.Tensor, x0: torch.Tensor) -> None:
        step, sigmas = len(self._outputs), self.response.sigmas
        if step == len(sigmas):
            self.fail(f"the sampler calls the model more than {step} times", is_permanent=True)
            return
        kept = [x0, *self._parts]
        if not step:
            self.choose_device(len(sigmas) * sum(each.nbytes for each in kept))
        if self.failure is not None:
            return
        output, *parts = [((x - each) / sigmas[step]).to(self.device or each.device) for each in kept]
        self._outputs.append(output)
        self._by_part.append(parts)

    def fail(self, why: str, *, is_permanent: bool) -> None:
        """End it, and drop what was kept."""
        super().fail(why, is_permanent=is_permanent)
        self._outputs, self._by_part, self._final = [], [], None

    def full_run(self) -> FullRun:
        """What tuning needs of the run."""
        if self._final is None:
            raise StateError("a run ended before its last step")
        if not self._final.isfinite().all():
            raise ArithmeticError("the final latents are not finite")
        steps = [(output, parts or None) for output, parts in zip(self._outputs, self._by_part, strict=True)]
        products, shares = OutputProducts.of(steps, self._final, self.response.moved[-1])
        known = range(replayed_steps(len(steps)))
        path = SolverPath(
            latents=[self._final],
            shares=shares,
            calls=[[*self._by_part[step], self._outputs[step]] for step in known],
            outputs=self._outputs,
        )
        return FullRun(path=path, products=products, calls=1)


class _Follower:
    """Follows a strategy beside a picture.

    Args:
        first_reused: calls before this step are not made where the path knows them.
    """

    def __init__(self, run: SamplingRun, path: SolverPath, response: Response, first_reused: int) -> None:
        self._run, self._known, self._sigmas = run, path.calls[:first_reused], response.sigmas
        self.computed = 0
        """Calls of the model that were made."""

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        """A call of the model by the solver: known, computed or forecast."""
        step, run = self._run.calls, self._run
        sigma = self._sigmas[step]
        run.begin_call(sigma)

        def compute() -> torch.Tensor:
            if step < len(self._known):
                known: torch.Tensor = self._known[step][-1].to(x.device)
                return x - sigma * known
            self.computed += 1
            x0: torch.Tensor = executor(x, timestep, options, seed)
            return x0

        return run.whole(compute, x, active_conditions(executor.class_obj.conds.values(), sigma))


@dataclass(frozen=True)
class SamplerShadows:
    """Shadows of runs of a sampler, as `Shadows`. Each call's `replay` is its `SamplerCall` and its `Response`.

    Attributes:
        executor: ComfyUI's, of a run of an equal model that is prepared.
    """

    executor: Any

    def follow(self, call: MeasuredCall, strategy: Strategy, first_reused: int) -> Shadow:
        """As `Shadows.follow`."""
        again, response = call.replay
        run = SamplingRun(
            strategy,
            again.sigmas.tolist(),
            self.executor.class_obj.model_patcher.get_model_object("model_sampling"),
            sampler=sampler_name(again.sampler),
            number=0,
            emit=lambda _: None,
        )
        follower = _Follower(run, _path(call), response, first_reused)
        try:
            latents = again.make(self.executor, {PREDICT: follower.predict})
        finally:
            run.finish()
        return Shadow(follower.computed, latents)

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: Steps) -> Shadow:
        """As `Shadows.lead`; the fit knows the steps of the policy."""
        again, response = call.replay
        path = _path(call)
        leader = Leader(fit.begin(path.shares), path, response, fit.first_gap)
        latents = again.make(self.executor, leader.wrappers)
        return Shadow(leader.computed, latents)

    def arrive(self, call: MeasuredCall) -> Shadow:
        """As `Shadows.arrive`. A sampler makes no pictures."""
        return Shadow(0, call.full.final)


def _path(call: MeasuredCall) -> SolverPath:
    assert isinstance(call.full.path, SolverPath), "it was measured here"
    return call.full.path
