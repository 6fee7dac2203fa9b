"""A strategy at work on one pipeline: all calls of its scheduler and denoisers pass here."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from omnireuse.errors import StateError
from omnireuse.hooks.attachment import Attachment, RegionFactory
from omnireuse.hooks.companions import COMPANIONS, Companions
from omnireuse.hooks.denoisers import model_name, unwrapped
from omnireuse.hooks.finite import check_finite
from omnireuse.hooks.guiders import GUIDERS, guider_handlers
from omnireuse.hooks.interception import Handler, Interception, intercept, is_bypassed
from omnireuse.hooks.others import Others, calling_pipeline
from omnireuse.hooks.regions.step import SeveralOutputsError, StepRegion
from omnireuse.hooks.run import Chooser, DenoiserCall, Region, Run
from omnireuse.hooks.runs import Follower, Runs, StepHint
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.events import Decision
from omnireuse.loop.strategy import Strategy

if TYPE_CHECKING:
    from omnireuse.hooks.inert import InertRuns
    from omnireuse.summary.counters import Stats

__all__ = ["Session", "previous_sample", "session_of"]

logger = logging.getLogger("omnireuse")

Around = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Makes one call of the pipeline by `Session.call`, with something before or after it: `around(proceed, args, kwargs)`,
where `proceed` is the pipeline's own call."""

MOST_CALLS_A_STEP = 64
"""Far more than any guidance needs: a step with more calls is one whose end is not known."""

# Reentrant, because a collection of garbage within may end a session.
_lock = threading.RLock()
_open: weakref.WeakSet[Session] = weakref.WeakSet()
_kept: set[Session] = set()
"""Those whose pipelines are held weakly."""


def session_of(pipeline: Any) -> Session | None:
    """The session that is open on this pipeline."""
    with _lock:
        return next((session for session in _open if session.pipeline is pipeline), None)


class Session:
    """One strategy on one pipeline, from construction until `close`, or until the pipeline is gone.

    The pipeline is held weakly, and the session by this module as long as the pipeline lives. A pipeline that cannot be
    referenced weakly is held, and holds the session by its denoisers.

    Args:
        handle: what the user was given.
        follows: chooses the strategy of each run; None where `strategy` serves any.
        adapts: go on in region "call" where region "step" meets a denoiser that returns several kinds of latents.

    Attributes:
        calls_outside: denoiser calls that belonged to no run and were passed on.

    Raises:
        UnsupportedModelError: a pipeline without a denoiser, or without a scheduler where the region forecasts what it
            is given, or one whose parts cannot be intercepted.
    """

    def __init__(
        self,
        pipeline: Any,
        strategy: Strategy,
        make_region: RegionFactory,
        stats: Stats,
        inert: InertRuns,
        *,
        handle: Any = None,
        agreement: Agreement | None = None,
        follows: Follower | None = None,
        adapts: bool = False,
    ) -> None:
        self._pipeline = self._hold(pipeline)
        self._name = type(pipeline).__name__
        self.stats, self.handle = stats, handle
        self._inert, self._adapts = inert, adapts
        self.others = Others(self._name, stats, lambda pipeline: session_of(pipeline) is not None)
        """Warns of others at work on the denoisers."""
        self.runs = Runs(
            strategy,
            agreement or Agreement(),
            lambda strategy: self._attached.region_for(strategy),
            self._decided,
            self._ended,
            lambda: getattr(self.pipeline, "num_timesteps", None),
            follows,
        )
        self.calls_outside = 0
        self._around: Around | None = None
        self._companions = Companions()
        self._attached = Attachment(self, make_region, self._handlers)
        self._on_pipeline: Interception | None = None
        try:
            self._refresh()
            if any("__call__" in vars(cls) for cls in type(pipeline).__mro__):
                self._on_pipeline = intercept(pipeline, self, {"__call__": self.called})
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

    @property
    def strategy(self) -> Strategy:
        """The strategy of runs that no chooser chooses another one for."""
        return self.runs.strategy

    def surround(self, around: Around, outside: Chooser | None = None) -> Around:
        """Make the pipeline's calls by `around` from now on; return the function that has made them until now.

        Args:
            outside: chooses the strategy of runs that no call of the pipeline makes; None leaves that as it is.
        """
        before, self._around = self._around or self.call, around
        self.runs.outside = outside or self.runs.outside
        return before

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

    def close(self) -> None:
        """Restore every object and drop all state. Idempotent."""
        with _lock:
            _open.discard(self)
            _kept.discard(self)
        self.runs.close()
        self._attached.undo()
        if self._on_pipeline is not None:
            self._on_pipeline.undo()
            self._on_pipeline = None

    def _refresh(self) -> None:
        """Stand before the pipeline's present parts, which a user may have exchanged."""
        self._attached.refresh(self.pipeline, self.strategy)
        self.others.look_for_caches(self._attached.denoisers)

    def _handlers(self, name: str, part: Any, index: int) -> dict[str, Handler]:
        """The handlers of a part's methods, as `Attachment` takes them."""
        if name == "scheduler":
            return {"set_timesteps": self.timesteps_set, "step": self.scheduler_stepped}
        if name in GUIDERS:
            return guider_handlers(part, self.runs)
        if name in COMPANIONS:
            return {"__call__": self.companion_handler(name)} if isinstance(part, torch.nn.Module) else {}
        handlers: dict[str, Handler] = {"__call__": self.denoiser_handler(index, part)}
        return handlers | ({"cache_context": self.context_entered} if hasattr(part, "cache_context") else {})

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop all state; the next run has so many steps, if known, unless a scheduler says otherwise."""
        self._refresh()
        self.runs.expect(num_inference_steps)

    def advance(self, latents: torch.Tensor | None) -> None:
        """The step of this thread's run is over; the next one starts from `latents`.

        Raises:
            StateError: no run, because no timesteps were set or all steps are done.
        """
        run = self.runs.here.run
        if run is None:
            raise StateError("advance: no run is under way; set the scheduler's timesteps and call the denoiser first")
        run.end_step(latents)
        if run.generation.finished:
            self.runs.end()

    def _decided(self, decision: Decision) -> None:
        self.stats.inbox.append(decision)
        for observer in self.stats.observers:
            observer(decision)

    def _ended(self, run: Run, is_complete: bool) -> None:
        self.stats.count_beside(self._companions.take_calls())
        if run.generation.outputs.fell_back:
            self.stats.fell_back("forecasts of the raw output")
        try:
            if is_complete:
                check_finite(run, self.stats)
        finally:
            self._inert.end(run, is_complete)

    def _region_of(self, run: Run | None) -> Region | None:
        return None if run is None else run.region or self._attached.region

    def _is_ours(self) -> bool:
        """True if our pipeline calls, or a user's own loop, and not a pipeline that shares parts with ours."""
        if self.runs.here.depth:
            return True
        caller = calling_pipeline()
        return caller is None or caller is self.pipeline

    def called(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Takes the calls of the pipeline."""
        if self._around is None or self.runs.here.depth:
            return self.call(proceed, args, kwargs)
        try:
            return self._around(proceed, args, kwargs)
        finally:
            self.runs.here.final = None

    def call(
        self,
        proceed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        chooser: Chooser | None = None,
    ) -> Any:
        """One call of the pipeline, whose runs follow the chooser's strategy; None for the session's strategy."""
        self._refresh()
        outside = self.calls_outside
        with self.runs.within_call(self.pipeline, args, kwargs, chooser) as here:
            result = proceed(*args, **kwargs)
            self.runs.end(is_complete=getattr(self.pipeline, "_interrupt", False) is not True)
        if not here.had_run:
            self._inert.no_run(self._name, is_called=self.calls_outside != outside)
        return result

    def timesteps_set(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Takes the calls of the scheduler's `set_timesteps`."""
        self.runs.end()
        result = proceed(*args, **kwargs)
        if self._is_ours():
            self._companions.begin()
            if is_bypassed(self):
                self._refresh()
            self.runs.announce(self._attached.scheduler)
        return result

    def scheduler_stepped(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Takes the calls of the scheduler's `step`."""
        run = self.runs.here.run
        region = self._region_of(run)
        if run is None or region is None or not self._is_ours():
            return proceed(*args, **kwargs)
        if not run.calls:
            if self._attached.is_left_behind(self.pipeline):
                self.others.have_replaced_the_denoiser()
                self.runs.end()
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
            self.runs.end()
            raise
        latents = previous_sample(result)
        region.stepped(run, latents)
        if self._around is not None:
            self.runs.here.final = latents
        self.advance(latents)
        return result

    def denoiser_handler(self, index: int, module: torch.nn.Module) -> Callable[..., Any]:
        """Takes the calls of one denoiser."""
        model, name = unwrapped(module), model_name(module)

        def called(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            here, run = self.runs.here, None
            if self._is_ours():
                run = here.run
                if run is None or here.scheduler is not None or not run.is_stepped:
                    run = self.runs.enter(module, args, kwargs, by_timestep=not self._attached.is_on_scheduler)
            else:
                self.others.was_called_by(calling_pipeline())
            region = self._region_of(run)
            if run is None or region is None:
                self.calls_outside += 1
                return proceed(*args, **kwargs)
            if here.told.sigma is not None and run.generation.level.sample_weight is None:
                run.sigma_told(float(here.told.sigma))
            order, branch = run.count(index, here.context or here.guided)
            if run.calls > MOST_CALLS_A_STEP:
                self.runs.end()
                self._inert.no_step_ended(MOST_CALLS_A_STEP)
                return proceed(*args, **kwargs)
            if self._companions.are_called:
                proceed = self._companions.denoise(proceed, args, kwargs)
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
                self.runs.end()
                raise

        return called

    @contextmanager
    def context_entered(self, proceed: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Takes the calls of a denoiser's `cache_context`."""
        here = self.runs.here
        outer = here.context, here.told
        here.context, here.told = name, StepHint(*map(kwargs.get, ("step_index", "num_inference_steps", "sigma")))
        try:
            with proceed(name, *args, **kwargs) as entered:
                yield entered
        finally:
            here.context, here.told = outer

    def companion_handler(self, name: str) -> Callable[..., Any]:
        """Takes the calls of companions of the denoisers."""

        def called(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if not self._is_ours():
                return proceed(*args, **kwargs)
            here = self.runs.here
            run = here.run if here.scheduler is None else None
            region = self._region_of(run)
            reuses = run is not None and run.is_reused_by_schedule and type(region) is StepRegion
            return self._companions.call(name, run, reuses and not torch.is_grad_enabled(), proceed, args, kwargs)

        return called

    def _forecast_calls(self, run: Run, why: SeveralOutputsError) -> Region:
        """Go on in region "call". The run has computed its first call, and remembers nothing yet."""
        logger.warning("%s: from now on the calls of this pipeline are forecast, and not its steps", why)
        self.stats.fell_back("region call")
        strategy = self.runs.strategy = replace(self.strategy, region="call", shared_cfg_decision=True)
        region = self._attached.region_for(strategy)
        assert region is not None, "another one is at work"
        run.go_on_in(region, strategy)
        return region


def previous_sample(result: Any) -> torch.Tensor | None:
    """The latents that a scheduler's step returned, in whatever form; None where there are none."""
    sample = getattr(result, "prev_sample", None)
    if sample is None and isinstance(result, (tuple, list)) and result:
        sample = result[0]
    return sample if isinstance(sample, torch.Tensor) else None
