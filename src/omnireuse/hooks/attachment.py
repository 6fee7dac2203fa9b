"""The interceptions of a session: at a pipeline's denoisers, scheduler, ControlNets and guiders, whose calls come here.

A user may exchange the parts; `refresh` then stands before the new ones.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.companions import COMPANIONS
from omnireuse.hooks.denoisers import denoisers_of, model_name, unwrapped
from omnireuse.hooks.guiders import GUIDERS, guider_handlers
from omnireuse.hooks.interception import Handler, Interception, intercept, is_bypassed
from omnireuse.hooks.others import Others, calling_pipeline
from omnireuse.hooks.regions.step import SeveralOutputsError, StepRegion
from omnireuse.hooks.run import DenoiserCall, Region, Run
from omnireuse.hooks.runs import Runs, StepHint
from omnireuse.loop.events import Decision
from omnireuse.loop.strategy import Strategy

if TYPE_CHECKING:
    from omnireuse.hooks.inert import InertRuns
    from omnireuse.summary.counters import Stats

__all__ = ["Attachment", "RegionFactory", "decided", "previous_sample"]

logger = logging.getLogger("omnireuse")

RegionFactory = Callable[[Strategy, Sequence[torch.nn.Module], object], Region]

MOST_CALLS_A_STEP = 64
"""Far more than any guidance needs: a step with more calls is one whose end is not known."""


class Attachment:
    """The interceptions of one session on its pipeline's parts.

    Args:
        pipeline: gives the pipeline; None once it is gone.
        make_region: makes the region of a strategy.
        runs: of the pipeline.
        others, inert, stats: warn and count.
        adapts: go on in region "call" where region "step" meets a denoiser that returns several kinds of latents.
    """

    def __init__(
        self,
        pipeline: Callable[[], Any],
        make_region: RegionFactory,
        runs: Runs,
        others: Others,
        inert: InertRuns,
        stats: Stats,
        *,
        adapts: bool,
    ) -> None:
        self.region: Region | None = None
        """The region at work; None where nothing is attached."""
        self._pipeline, self._make_region, self._adapts = pipeline, make_region, adapts
        self._runs, self._others, self._inert, self._stats = runs, others, inert, stats
        self._kind = ""
        """Of the region at work."""
        self._denoisers: list[torch.nn.Module] = []
        self._on_denoisers: list[Interception] = []
        self._parts: dict[str, Any] = {}
        """The pipeline's other parts, by attribute."""
        self._on_parts: list[Interception] = []
        self._has_scheduler = False
        """True if a scheduler tells the steps."""

    def refresh(self) -> None:
        """Stand before the pipeline's present denoisers and other parts.

        Raises:
            UnsupportedModelError: no denoiser, or no scheduler where the region needs one, or parts that cannot be
                intercepted.
        """
        pipeline, strategy, bypassed = self._pipeline(), self._runs.strategy, is_bypassed(self)
        denoisers = denoisers_of(pipeline)
        if not _are_same(denoisers, self._denoisers) or bypassed:
            self._leave_denoisers()
            self._denoisers = denoisers
            for index, denoiser in enumerate(denoisers):
                handlers = {"__call__": self._denoiser_called(index, denoiser), "cache_context": self._context_entered}
                self._intercept(denoiser, handlers, self._on_denoisers)
            self.region, self._kind = self._make_region(strategy, denoisers, self), strategy.region
        parts = {name: getattr(pipeline, name, None) for name in ("scheduler", *COMPANIONS, *GUIDERS)}
        if not _are_same([*parts.values()], [*self._parts.values()]) or bypassed:
            self._leave_parts()
            self._parts = parts
            self._intercept_parts()
        if strategy.region == "step" and not self._has_scheduler:
            raise UnsupportedModelError(
                f"Strategy(region='step'): {type(pipeline).__name__}.scheduler must have set_timesteps and step, "
                f"got {parts['scheduler']!r}; use region='call', which needs no scheduler"
            )
        self._others.look_for_caches(denoisers)

    def _intercept(self, part: Any, handlers: dict[str, Handler], into: list[Interception]) -> None:
        """Route the calls of those methods that the part has."""
        into.append(intercept(part, self, {name: each for name, each in handlers.items() if hasattr(part, name)}))

    def _intercept_parts(self) -> None:
        for name, part in self._parts.items():
            if name == "scheduler":
                self._has_scheduler = hasattr(part, "set_timesteps") and hasattr(part, "step")
                handlers = {"set_timesteps": self._timesteps_set, "step": self._scheduler_stepped}
                self._intercept(part, handlers if self._has_scheduler else {}, self._on_parts)
            elif name in GUIDERS:
                self._intercept(part, guider_handlers(part, self._runs), self._on_parts)
            elif isinstance(part, torch.nn.Module):
                self._intercept(part, {"__call__": self._companion_called(name)}, self._on_parts)

    def region_for(self, strategy: Strategy) -> Region | None:
        """The region of a run under a strategy; None where it is the one at work."""
        if strategy.region != self._kind or self.region is None:
            return self._make_region(strategy, self._denoisers, self)
        own = self.region.for_run()
        return None if own is self.region else own

    def undo(self) -> None:
        """Restore every object. Idempotent."""
        self._leave_denoisers()
        self._leave_parts()

    def _leave_denoisers(self) -> None:
        if self.region is not None:
            self.region.undo()
            self.region = None
        for interception in self._on_denoisers:
            interception.undo()
        self._on_denoisers, self._denoisers = [], []

    def _leave_parts(self) -> None:
        for interception in self._on_parts:
            interception.undo()
        self._on_parts, self._parts, self._has_scheduler = [], {}, False

    def _is_ours(self) -> bool:
        """True if our pipeline calls, or a user's own loop, and not a pipeline that shares parts with ours."""
        if self._runs.here.depth:
            return True
        caller = calling_pipeline()
        return caller is None or caller is self._pipeline()

    def _region_of(self, run: Run | None) -> Region | None:
        return None if run is None else run.region or self.region

    def _timesteps_set(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._runs.end()
        result = proceed(*args, **kwargs)
        if self._is_ours():
            self._runs.here.companions.begin()
            if is_bypassed(self):
                self.refresh()
            self._runs.here.scheduler = self._parts["scheduler"]
        return result

    def _scheduler_stepped(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        here = self._runs.here
        run, region = here.run, self._region_of(here.run)
        if run is None or region is None or not self._is_ours():
            return proceed(*args, **kwargs)
        if not run.calls:
            if not _are_same(denoisers_of(self._pipeline()), self._denoisers):
                self._others.have_replaced_the_denoiser()
                self._runs.end()
                return proceed(*args, **kwargs)
            # No denoiser call: the pipeline goes on with what the step before has given (Cosmos 1.0).
            result = proceed(*args, **kwargs)
            run.latents = previous_sample(result)
            return result
        try:
            run.given = values = dict(zip(("model_output", "timestep", "sample"), args, strict=False)) | kwargs
            output = region.scheduler_step(run, values["model_output"], values["sample"])
            if args:
                args = (output, *args[1:])
            else:
                kwargs["model_output"] = output
            result = proceed(*args, **kwargs)
        except BaseException:
            self._runs.end()
            raise
        latents = previous_sample(result)
        region.stepped(run, latents)
        if here.depth:
            here.final = latents
        run.end_step(latents)
        if run.generation.finished:
            self._runs.end()
        return result

    def _denoiser_called(self, index: int, module: torch.nn.Module) -> Handler:
        """The handler of one denoiser's calls."""
        model, name, runs = unwrapped(module), model_name(module), self._runs

        def called(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            here, run = runs.here, None
            if self._is_ours():
                run = here.run
                if run is None or here.scheduler is not None or not run.is_stepped:
                    run = runs.enter(module, args, kwargs, by_timestep=not self._has_scheduler)
            else:
                self._others.was_called_by(calling_pipeline())
            region = self._region_of(run)
            if run is None or region is None:
                runs.calls_outside += 1
                return proceed(*args, **kwargs)
            if here.told.sigma is not None and run.generation.level.sample_weight is None:
                run.sigma_told(float(here.told.sigma))
            order, branch = run.count(index, here.context or here.guided)
            if run.calls > MOST_CALLS_A_STEP:
                runs.end()
                self._inert.no_step_ended(MOST_CALLS_A_STEP)
                return proceed(*args, **kwargs)
            if here.companions.are_called:
                proceed = here.companions.denoise(proceed, args, kwargs)
            call = DenoiserCall(run, model, name, index, branch, order, proceed, args, kwargs)
            try:
                if torch.is_grad_enabled():
                    call.refuse_gradients()
                try:
                    return region.call(call)
                except SeveralOutputsError as error:
                    if not self._adapts:
                        raise
                    return self._forecast_calls(run, error).call(call)
            except BaseException:
                runs.end()
                raise

        return called

    def _forecast_calls(self, run: Run, why: SeveralOutputsError) -> Region:
        """Go on in region "call". The run has computed its first call, and remembers nothing yet."""
        logger.warning("%s: from now on the calls of this pipeline are forecast, and not its steps", why)
        self._stats.fell_back("region call")
        strategy = self._runs.strategy = replace(self._runs.strategy, region="call", shared_cfg_decision=True)
        region = self._make_region(strategy, self._denoisers, self)
        run.region, run.generation.strategy = region, strategy
        return region

    @contextmanager
    def _context_entered(self, proceed: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        here = self._runs.here
        outer = here.context, here.told
        here.context, here.told = name, StepHint(*map(kwargs.get, ("step_index", "num_inference_steps", "sigma")))
        try:
            with proceed(name, *args, **kwargs) as entered:
                yield entered
        finally:
            here.context, here.told = outer

    def _companion_called(self, name: str) -> Handler:
        """The handler of the calls of one companion."""

        def called(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self._is_ours():
                return proceed(*args, **kwargs)
            here = self._runs.here
            run = here.run if here.scheduler is None else None
            reuses = run is not None and run.is_reused_by_schedule and type(self._region_of(run)) is StepRegion
            return here.companions.call(name, run, reuses and not torch.is_grad_enabled(), proceed, args, kwargs)

        return called


def decided(stats: Stats, decision: Decision) -> None:
    """Count a decision that was carried out, and show it to the observers."""
    stats.inbox.append(decision)
    for observer in stats.observers:
        observer(decision)


def previous_sample(result: Any) -> torch.Tensor | None:
    """The latents that a scheduler's step returned, in whatever form; None where there are none."""
    sample = getattr(result, "prev_sample", None)
    if sample is None and isinstance(result, (tuple, list)) and result:
        sample = result[0]
    return sample if isinstance(sample, torch.Tensor) else None


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
