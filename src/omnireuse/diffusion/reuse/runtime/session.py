"""A strategy at work on one pipeline: it stands before scheduler and denoisers, and undoes itself."""

from __future__ import annotations

import logging
import operator
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.events import Decision
from omnireuse.diffusion.reuse.generation import Emit
from omnireuse.diffusion.reuse.runtime.callers import calling_pipeline
from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.gradients import refuse_gradients
from omnireuse.diffusion.reuse.runtime.inert import InertRuns, no_run, no_step_ended, no_steps
from omnireuse.diffusion.reuse.runtime.interception import Interception, intercept, is_bypassed
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall, Region
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.runs import MOST_CALLS_A_STEP, Runs
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import UnsupportedModelError

__all__ = ["Session", "previous_sample", "session_of"]

logger = logging.getLogger("omnireuse")

# Reentrant, because a collection of garbage within may end a session.
_lock = threading.RLock()
_open: weakref.WeakSet[Session] = weakref.WeakSet()
_kept: set[Session] = set()
"""Those whose pipelines are held weakly."""

RegionFactory = Callable[[Strategy, Sequence[torch.nn.Module], object], Region]


def session_of(pipeline: Any) -> Session | None:
    """The session that is open on this pipeline."""
    with _lock:
        return next((session for session in _open if session.pipeline is pipeline), None)


class _Here(threading.local):
    """What this thread is doing."""

    context: str | None = None
    """The cache context that the pipeline has entered."""
    calls: int = 0
    """How many calls of the session's pipeline it is in."""


class Session:
    """One strategy on one pipeline, from construction until `close`, or until the pipeline is gone.

    The pipeline is held weakly, and the session by this module as long as the pipeline lives: a user need not keep
    anything. What cannot be referenced weakly is held as ever, and holds the session by its denoisers.

    Args:
        pipeline: anything with a denoiser; a diffusers pipeline tells its steps through its scheduler.
        strategy: what to do.
        make_region: builds the region for the denoisers.
        emit: takes every decision.
        agreement: how ranks agree; alone by default.

    Raises:
        UnsupportedModelError: a pipeline without a denoiser, or without a scheduler where the region forecasts what it
            is handed, or one whose parts cannot be intercepted.
    """

    def __init__(
        self,
        pipeline: Any,
        strategy: Strategy,
        make_region: RegionFactory,
        emit: Emit,
        agreement: Agreement | None = None,
    ) -> None:
        self._pipeline = self._hold(pipeline)
        self._name = type(pipeline).__name__
        self.strategy = strategy
        self.handle: Any = None
        """What the user was given."""
        self._emit = emit
        self._inert = InertRuns(strategy)
        self.runs = Runs(self._told_steps, strategy, agreement or Agreement(), self._decided, self._inert.end)
        self.calls_outside = 0
        """Denoiser calls that belonged to no run and were passed on."""
        self._make_region = make_region
        self._here = _Here()
        self._region: Region | None = None
        self._denoisers: list[torch.nn.Module] = []
        self._scheduler: Any = None
        self._on_denoisers: list[Interception] = []
        self._on_scheduler: Interception | None = None
        self._on_pipeline: Interception | None = None
        try:
            self._attach()
            if strategy.region == "step" and self._on_scheduler is None:
                raise UnsupportedModelError(
                    f"Strategy(region='step'): {self._name}.scheduler must have set_timesteps and step, "
                    f"got {self._scheduler!r}; use region='call', which needs no scheduler"
                )
            if any("__call__" in vars(cls) for cls in type(pipeline).__mro__):
                self._on_pipeline = intercept(pipeline, self, {"__call__": self._pipeline_called})
        except BaseException:
            self.close()
            raise
        with _lock:
            _open.add(self)
            if isinstance(self._pipeline, weakref.ref):
                _kept.add(self)

    @property
    def pipeline(self) -> Any:
        """The pipeline; None once it is gone."""
        return self._pipeline()

    def _hold(self, pipeline: Any) -> Callable[[], Any]:
        this = weakref.ref(self)

        def gone(_: object) -> None:
            session = this()
            if session is not None:
                logger.info("the %s that reuse was enabled on is gone: reuse has ended", session._name)
                session.close()

        try:
            return weakref.ref(pipeline, gone)
        except TypeError:
            return lambda: pipeline

    def _decided(self, decision: Decision) -> None:
        self._inert.see(decision)
        self._emit(decision)

    def _told_steps(self) -> object:
        return getattr(self.pipeline, "num_timesteps", None)

    # -- coming and going -------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Stand before the pipeline's present denoisers and scheduler, which a user may have exchanged or compiled."""
        pipeline = self.pipeline
        denoisers = denoisers_of(pipeline)
        is_same = len(denoisers) == len(self._denoisers) and all(map(operator.is_, denoisers, self._denoisers))
        if not is_same or is_bypassed(self):
            self._detach_denoisers()
            self._denoisers = denoisers
            for index, denoiser in enumerate(denoisers):
                handlers: dict[str, Callable[..., Any]] = {"__call__": self._denoiser_handler(index, denoiser)}
                if hasattr(denoiser, "cache_context"):
                    handlers["cache_context"] = self._context_entered
                self._on_denoisers.append(intercept(denoiser, self, handlers))
            self._region = self._make_region(self.strategy, denoisers, self)
        scheduler = getattr(pipeline, "scheduler", None)
        if scheduler is not self._scheduler:
            if self._on_scheduler is not None:
                self._on_scheduler.undo()
                self._on_scheduler = None
            self._scheduler = scheduler
            if hasattr(scheduler, "set_timesteps") and hasattr(scheduler, "step"):
                handlers = {"set_timesteps": self._timesteps_set, "step": self._scheduler_stepped}
                self._on_scheduler = intercept(scheduler, self, handlers)

    def _detach_denoisers(self) -> None:
        if self._region is not None:
            self._region.undo()
            self._region = None
        for interception in self._on_denoisers:
            interception.undo()
        self._on_denoisers.clear()
        self._denoisers = []

    def close(self) -> None:
        """Restore every object and drop all state. Idempotent."""
        with _lock:
            _open.discard(self)
            _kept.discard(self)
        self.runs.close()
        self._here = _Here()
        self._detach_denoisers()
        for interception in (self._on_scheduler, self._on_pipeline):
            if interception is not None:
                interception.undo()
        self._on_scheduler = self._on_pipeline = self._scheduler = None

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop all state; the next run has so many steps, if known, unless a scheduler says otherwise."""
        self._attach()
        self.runs.expect(num_inference_steps)

    # -- what the intercepted objects report ------------------------------------------------------------------------

    def _is_ours(self) -> bool:
        """Whether the call comes from our pipeline or a loop of the user's own, and not from a pipeline that shares
        parts with ours."""
        if self._here.calls:
            return True
        caller = calling_pipeline()
        return caller is None or caller is self.pipeline

    def _pipeline_called(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._attach()
        self.runs.watch()
        outside = self.calls_outside
        self._here.calls += 1
        try:
            result = proceed(*args, **kwargs)
            self.runs.complete()
        finally:
            self._here.calls -= 1
            self.runs.end()
        if not self.runs.served:
            self._inert.say(
                no_run(self._name)
                if self.calls_outside == outside
                else no_steps(f"the scheduler of {self._name} was told no timesteps before")
            )
        return result

    def _timesteps_set(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.runs.end()
        result = proceed(*args, **kwargs)
        if self._is_ours():
            if is_bypassed(self):
                self._attach()
            self.runs.announce(self._scheduler)
        return result

    def _scheduler_stepped(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        run = self.runs.current
        if run is None or not self._is_ours():
            return proceed(*args, **kwargs)
        if run.calls == 0:
            # No denoiser was asked: the pipeline works on with what the step before has given (Cosmos 1.0).
            result = proceed(*args, **kwargs)
            run.latents = previous_sample(result)
            return result
        try:
            values = dict(zip(("model_output", "timestep", "sample"), args, strict=False)) | kwargs
            assert self._region is not None
            output = self._region.scheduler_step(run, values["model_output"], values["sample"])
            if args:
                args = (output, *args[1:])
            else:
                kwargs["model_output"] = output
            result = proceed(*args, **kwargs)
        except BaseException:
            self.runs.end()
            raise
        self.runs.advance(previous_sample(result))
        return result

    def _denoiser_handler(self, index: int, module: torch.nn.Module) -> Callable[..., Any]:
        def called(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            run = self._run_of(module, args, kwargs)
            if run is None or self._region is None:
                self.calls_outside += 1
                return proceed(*args, **kwargs)
            order = run.order(index)
            branch = run.name_branch(index, self._here.context)
            if self.runs.stalls(run):
                self._inert.say(no_step_ended(MOST_CALLS_A_STEP))
                return proceed(*args, **kwargs)
            call = DenoiserCall(
                run=run,
                module=module,
                denoiser=index,
                branch=branch,
                order=order,
                proceed=proceed,
                args=args,
                kwargs=kwargs,
            )
            try:
                refuse_gradients(call)
                return self._region.call(call)
            except BaseException:
                # Nothing half remembered may serve a later call.
                self.runs.end()
                raise

        return called

    def _run_of(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Run | None:
        """The run that a denoiser call belongs to."""
        if not self._is_ours():
            return None
        return self.runs.enter(module, args, kwargs, by_timestep=self._on_scheduler is None)

    @contextmanager
    def _context_entered(self, proceed: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        outer, self._here.context = self._here.context, name
        try:
            with proceed(name, *args, **kwargs) as entered:
                yield entered
        finally:
            self._here.context = outer


def previous_sample(result: Any) -> torch.Tensor | None:
    """The latents that a scheduler's step returned, in whatever form; None where there are none."""
    sample = getattr(result, "prev_sample", None)
    if sample is None and isinstance(result, (tuple, list)) and result:
        sample = result[0]
    return sample if isinstance(sample, torch.Tensor) else None
