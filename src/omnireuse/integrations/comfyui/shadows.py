"""Full runs of a sampler that tuning measures, and the runs beside them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from omnireuse.diffusion.calibration.branches import Shares
from omnireuse.diffusion.calibration.fit import WeightFit
from omnireuse.diffusion.reuse.generation import Generation
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.tuning.full_run import FullRun, replayed_steps
from omnireuse.diffusion.tuning.recording import MOST_BYTES, ON_DEVICE
from omnireuse.diffusion.tuning.trials import MeasuredCall, Shadow
from omnireuse.integrations.comfyui.graph import sampler_name
from omnireuse.integrations.comfyui.recording import Leader, PartsWatcher, SolverPath
from omnireuse.integrations.comfyui.sampling import SamplingRun, active_conditions
from omnireuse.integrations.comfyui.solver import Response
from omnireuse.integrations.comfyui.wrappers import PARTS, PREDICT, SAMPLER, Wrappers

__all__ = ["Measurement", "SamplerShadows"]

logger = logging.getLogger("omnireuse")


class Measurement(PartsWatcher):
    """Computes every step of one run, and keeps copies of what the model gives. An error in keeping ends the
    measurement and not the run.

    Args:
        response: of the sampler.
        generation: of a strategy that computes every step; its events say that the run is measured.
    """

    def __init__(self, response: Response, generation: Generation) -> None:
        super().__init__()
        self.failure: str | None = None
        """Why nothing can be learnt from the run; None as long as something can."""
        self.is_permanent = False
        """Whether other runs of this configuration would fail alike."""
        self.generation = generation
        self.response = response
        self._outputs, self._by_part = list[torch.Tensor](), list[list[torch.Tensor]]()
        self._final: torch.Tensor | None = None
        self._device: torch.device | None = None

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
        if self.failure is None:
            try:
                self._keep(x, x0)
            except Exception as error:  # the picture must not fail because measuring it does
                logger.warning("measuring ended within a picture, which goes on: %s: %s", type(error).__name__, error)
                self._fail(f"{type(error).__name__}: {error}", is_permanent=False)
        return x0

    def sample(self, executor: Any, *args: Any) -> Any:
        """The solver's run."""
        result = executor(*args)
        if self.failure is None and len(self._outputs) == len(self.response.sigmas):
            self._final = result.clone()
        return result

    def _keep(self, x: torch.Tensor, x0: torch.Tensor) -> None:
        step, sigmas = len(self._outputs), self.response.sigmas
        if step == len(sigmas):
            self._fail(f"the sampler calls the model more than {step} times", is_permanent=True)
            return
        kept = [x0, *self._parts]
        if not step:
            needed = len(sigmas) * sum(each.nbytes for each in kept)
            if needed > MOST_BYTES:
                most = f"{MOST_BYTES / 2**30:.0f} GiB"
                self._fail(f"measuring would keep {needed / 2**30:.1f} GiB, and at most {most} are kept", True)
                return
            self._device = torch.device("cpu") if needed > ON_DEVICE else None
        output, *parts = [((x - each) / sigmas[step]).to(self._device or each.device) for each in kept]
        self._outputs.append(output)
        self._by_part.append(parts)

    def _fail(self, why: str, is_permanent: bool) -> None:
        self.failure, self.is_permanent = why, is_permanent
        self._outputs, self._by_part, self._final = [], [], None

    def full_run(self) -> FullRun:
        """What tuning needs of the run.

        Raises:
            ArithmeticError: the final latents are not finite.
        """
        assert self._final is not None, "the run is over, and was measured wholly"
        if not self._final.isfinite().all():
            raise ArithmeticError("the final latents are not finite")
        shares = Shares()
        for output, parts in zip(self._outputs, self._by_part, strict=True):
            shares.see(parts or None, output)
        known = replayed_steps(len(self._outputs))
        path = SolverPath(latents=[self._final], outputs=self._outputs)
        path.calls = [[*self._by_part[step], self._outputs[step]] for step in range(known)]
        handed = [output.float().cpu() for output in self._outputs]
        by_part = [[part.float().cpu() for part in parts] or None for parts in self._by_part]
        path.keep(shares, handed, by_part, self.response.moved[-1])
        products = path.take_products()
        assert products is not None, "the path has latents"
        return FullRun(path=path, products=products, calls=1)

    @property
    def is_whole(self) -> bool:
        """Whether all steps of the run were kept."""
        return self._final is not None


class _Follower:
    """Follows a strategy beside a picture.

    Args:
        run: of the strategy.
        path: of the full run.
        response: of the sampler.
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
        run.begin_call(sigma, by_part=False)

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

    def lead(self, call: MeasuredCall, fit: WeightFit, policy: FixedSchedule) -> Shadow:
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
