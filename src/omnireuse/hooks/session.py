"""A strategy at work on one pipeline, from `enable` until `disable` or the pipeline's end.

The session takes every call of the pipeline and of its parts. A run of denoising steps begins at the first denoiser
call after the scheduler's `set_timesteps`; a `Clock` tells which step each call belongs to, and a `Region` answers it.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from omnireuse import messages
from omnireuse.base.validation import Count, check_value
from omnireuse.errors import StateError, UnsupportedModelError
from omnireuse.hooks.callers import callbacks_aside, calling, pipeline_without_reuse
from omnireuse.hooks.clock import Asked, Begin
from omnireuse.hooks.denoisers import check_agreement, model_name, parameters_of, unwrapped
from omnireuse.hooks.extension import ByCalls, Extension, PipelineCall
from omnireuse.hooks.interception import Handler, Interception, MethodCall, intercept
from omnireuse.hooks.live import Live, Loop, Loops, SeveralOutputsError, StepRegion, end_step, next_step
from omnireuse.hooks.parts import GUIDERS, caches_on, guider_handlers
from omnireuse.hooks.run import Chosen, Region, RegionFactory, Run, RunStart
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.events import FellBack, Hooks, RunEnded, Unlike
from omnireuse.loop.generation import Generation
from omnireuse.loop.strategy import Strategy

if TYPE_CHECKING:
    from omnireuse.hooks.inert import InertRuns

__all__ = ["Session", "session_of"]

logger = logging.getLogger("omnireuse")

E = TypeVar("E", bound=Extension)

# Reentrant, because a collection of garbage within may end a session.
_lock = threading.RLock()
_open: weakref.WeakSet[Session] = weakref.WeakSet()
_kept: set[Session] = set()
"""Those whose pipelines are held weakly."""


def session_of(pipeline: Any) -> Session | None:
    """The session that is open on this pipeline."""
    with _lock:
        return next((session for session in _open if session.pipeline is pipeline), None)


class Session(Live):
    """One strategy on one pipeline, from construction until `close`, or until the pipeline is gone.

    The pipeline is held weakly, and the session by this module as long as the pipeline lives. A pipeline that cannot be
    referenced weakly is held, and holds the session by its denoisers.

    Args:
        make_region: makes the region of a strategy.
        inert: looks at each run at its end.
        extensions: as the attribute.
        handle: the user's.

    Attributes:
        strategy: of runs that no extension chooses another one for.
        extensions: work beside the generations; a later one is around the calls of those before it.

    Raises:
        UnsupportedModelError: a pipeline without a denoiser, or without a scheduler if the region forecasts what it
            is given, or one whose parts cannot be intercepted.
    """

    def __init__(
        self,
        pipeline: Any,
        strategy: Strategy,
        make_region: RegionFactory,
        inert: InertRuns,
        extensions: Iterable[Extension] = (),
        *,
        handle: Any = None,
        agreement: Agreement | None = None,
    ) -> None:
        super().__init__(self._hold(pipeline), type(pipeline).__name__, Hooks(), inert)
        self.handle, self.strategy, self.extensions = handle, strategy, tuple[Extension, ...]()
        for each in extensions:
            make_region = each.region(make_region)
        self._expected: int | None = None
        """Number of steps of the next run, if no scheduler tells it."""
        self._make_region = make_region
        self._agreement, self._numbers = agreement or Agreement(), itertools.count(1)
        self._region: Region | None = None
        """The region that `_kind` names; None if nothing is intercepted."""
        self._kind = ""
        self._on_pipeline: Interception | None = None
        self._is_open = True
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
        for each in extensions:
            self.attach(each)

    @property
    def pipeline(self) -> Any:
        """The pipeline; None once it is gone."""
        return self._pipeline()

    @property
    def final(self) -> torch.Tensor | None:
        """The latents that the scheduler has returned last in this thread's latest call of the pipeline; None once the
        caller has its result."""
        return self._loops.final

    @property
    def is_in_call(self) -> bool:
        """True within a call of the pipeline by this thread."""
        return bool(self._loops.calls)

    def attach(self, extension: Extension) -> None:
        """Let an extension work beside those that are there."""
        self._hold_extensions((*self.extensions, extension))
        extension.attach(self)

    def detach(self, extension: Extension | None) -> None:
        """Take an extension out, without closing it."""
        self._hold_extensions(tuple(each for each in self.extensions if each is not extension))

    def _hold_extensions(self, extensions: tuple[Extension, ...]) -> None:
        self.extensions = extensions
        self.hooks.all = tuple(each.event for each in extensions if each.event is not None)

    def extension(self, kind: type[E]) -> E | None:
        """The first extension of a kind; None if there is none."""
        return next((each for each in self.extensions if isinstance(each, kind)), None)

    def _hold(self, pipeline: Any) -> Callable[[], Any]:
        this = weakref.ref(self)

        def gone(_: object) -> None:
            session = this()
            if session is not None and session._is_open:
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
            self._is_open = False
        self._end()
        self._loops = Loops()
        self._drop_region()
        self._parts.undo()
        if self._on_pipeline is not None:
            self._on_pipeline.undo()
            self._on_pipeline = None

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop this thread's state; the next run has so many steps, if known, unless a scheduler says otherwise.

        Raises:
            ConfigError: no whole number ≥ 1, nor None.
        """
        check_value("expect", "num_inference_steps", num_inference_steps, Count | None)
        self._refresh()
        self._end()
        self.loop.clock.announce()
        self._expected = num_inference_steps

    def advance(self, latents: torch.Tensor | None) -> None:
        """End the step of this thread's run; the next one starts from `latents`.

        Raises:
            StateError: no run, because no timesteps were set or all steps are done.
        """
        run = self.loop.run
        if run is None:
            raise StateError("advance: no run is under way; set the scheduler's timesteps and call the denoiser first")
        if end_step(run, latents):
            self._end()

    # -- the pipeline's calls

    def called(self, made: MethodCall) -> Any:
        """Handle a call of the pipeline."""
        call, make = PipelineCall(made.proceed, made.args, made.kwargs), self.make
        if self.is_in_call:
            return make(call)
        for each in self.extensions:
            make = partial(each.around, make=make)
        try:
            return make(call)
        finally:
            self._loops.final = None

    def make(self, call: PipelineCall) -> Any:
        """Make a call of the pipeline, without the extensions around it."""
        args, kwargs = call.args, call.kwargs
        self._refresh()
        pipeline, outside = self.pipeline, self.calls_outside
        loop, loops = Loop(call.choose, (pipeline, args, kwargs)), self._loops
        loop.clock.announce()
        loops.calls.append(loop)
        loops.now = loop
        try:
            with calling(pipeline), callbacks_aside(args, kwargs, loop.touched) as (given, named):
                result = call.proceed(*given, **named)
            self._end(is_complete=getattr(pipeline, "_interrupt", False) is not True)
        finally:
            self._end()
            loops.calls.remove(loop)
            loops.now = loops.calls[-1] if loops.calls else loops.own
            loops.final = loop.final
        if not loop.had_run:
            self._inert.no_run(self._name, is_called=self.calls_outside != outside)
        return result

    # -- the calls of its parts

    def _handlers(self, name: str, part: Any) -> Mapping[str, Handler]:
        """The handlers of a part's methods."""
        if name.isdigit():
            return {"__call__": self._denoiser_called(int(name), part), "cache_context": self._context_entered}
        if name == "scheduler":
            return {"set_timesteps": self._timesteps_set, "step": self._scheduler_stepped}
        if name in GUIDERS:
            return guider_handlers(part, lambda: self.loop.guided)
        return {"__call__": self._companion_called(name, part)} if isinstance(part, torch.nn.Module) else {}

    def _timesteps_set(self, call: MethodCall) -> Any:
        if not self._is_caller():
            return call.make()
        self._end()
        result = call.make()
        self.loop.companions.begin()
        if self._parts.are_bypassed:
            self._refresh()
        self.loop.clock.scheduler = self._parts.scheduler
        return result

    def _run_of(self, loop: Loop, asked: Asked) -> Run | None:
        """The run that a denoiser call belongs to; None for a call that belongs to none."""
        if not self._is_caller():
            if (other := pipeline_without_reuse()) is not None:
                self._said.say(
                    f"{other} shares a denoiser with the {self._name} that reuse is enabled on (as after from_pipe),"
                    " and reuses nothing itself; call omnireuse.enable on it, too"
                )
            return None
        if loop.clock.scheduler is not None:
            check_agreement(self.strategy.policy, self._agreement, asked.module)
        taken, is_watched = getattr(self.pipeline, "num_timesteps", None), self._parts.scheduler is not None
        run, clock = loop.run, loop.clock
        found = clock.move(run, asked, is_watched=is_watched, expected=self._expected, taken=taken)
        if isinstance(found, Begin):
            run = self._begin(found, () if asked.latents is None else tuple(asked.latents.shape))
            run.has_times = asked.has_times
            return run
        if found is None and not is_watched:
            self._said.say(
                f"calls of {model_name(asked.module)} belong to no run that was announced, and are computed: call "
                "handle.expect(num_inference_steps) before each generation, or name each step by "
                "cache_context(name, step_index=...)"
            )
        if run is None or found is None:
            return None
        for _ in range(found):
            next_step(run)
        return run

    def _companion_called(self, name: str, module: torch.nn.Module) -> Handler:
        """The handler of the calls of one companion."""
        names = parameters_of(type(unwrapped(module)).forward)

        def called(call: MethodCall) -> Any:
            if not self._is_caller():
                return call.make()
            loop = self.loop
            run = loop.run if loop.clock.scheduler is None else None
            reuses = run is not None and run.is_reused_by_schedule and type(run.region) is StepRegion
            given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
            return loop.companions.call(name, run, reuses and not torch.is_grad_enabled(), given, call)

        return called

    # -- runs

    def _begin(self, begin: Begin, shape: tuple[int, ...]) -> Run:
        loop = self.loop
        run, loop.run = loop.run, None
        loop.touched.clear()
        self._drop(loop, run, begin.completes)
        start = RunStart(
            total=begin.total,
            levels=begin.levels,
            scheduler=begin.scheduler,
            shape=shape,
            call=loop.call,
            strategy=self.strategy,
        )
        asked = (*([loop.chooser] if loop.chooser is not None else []), *(each.choose for each in self.extensions))
        chosen = next((found for choose in asked if (found := choose(start))), Chosen(strategy=self.strategy))
        is_uncounted = chosen.kind == "uncounted"
        generation = self.generation(chosen.strategy, start)
        if not is_uncounted:
            generation.number, generation.hooks = next(self._numbers), self.hooks
        region = chosen.region or self._region_for(chosen.strategy)
        loop.had_run, loop.run = True, Run(generation, chosen.kind, region, chosen.references)
        caution = None
        if generation.total is not None and not is_uncounted:
            caution = chosen.strategy.policy.caution(generation.total, generation.noises)
        if caution is not None:  # a second run of the same length adds nothing
            self._said.say(caution)
        return loop.run

    def generation(self, strategy: Strategy, start: RunStart) -> Generation:
        """The state of a run that begins, under a strategy, without observers."""
        made = Generation(strategy, start.levels, total=start.total, agreement=self._agreement, number=0)
        made.outputs.said = self._said
        return made

    def _end(self, *, is_complete: bool = False) -> None:
        """Drop the run of this thread's loop and everything it kept. Idempotent."""
        loop = self.loop
        self._drop(loop, loop.end(), is_complete)

    def _drop(self, loop: Loop, run: Run | None, is_complete: bool) -> None:
        """Drop everything that a run of a loop has kept, and tell the hooks of its end.

        Raises:
            StateError: a forecast was not finite.
        """
        if run is None:
            return
        generation = run.generation
        kept = run.kept_bytes if run.kind == "reuse" else 0
        run.finish()
        run.latents = None
        if run.kind == "uncounted":
            return
        if generation.outputs.fell_back:
            self.emit(FellBack("forecasts of the raw output"))
        for what in generation.fallbacks:
            self.emit(FellBack(what))
        if run.has_no_end_of_steps and run.has_times:
            self.emit(FellBack("computing every step of frames with timesteps of their own"))
        is_complete = is_complete or run.is_over()
        broken = run.first_broken() if is_complete else None
        # If timesteps alone tell the steps, the last one ends when another run begins.
        is_whole = is_complete or (not run.is_stepped and run.step >= (generation.total or 0) - 1)
        try:
            self._inert.end(run, is_complete, broken)
        finally:
            self.emit(
                RunEnded(
                    run=generation.number,
                    outcome="broken" if broken is not None else "whole" if is_whole else "aborted",
                    kept_bytes=kept,
                    seconds=time.perf_counter() - run.began if is_complete else 0.0,
                    companions=loop.companions.take_calls(),
                )
            )

    # -- regions

    def _refresh(self) -> None:
        """Intercept the pipeline's present parts.

        Raises:
            UnsupportedModelError: no denoiser, or no scheduler if the region needs one, or parts that cannot be
                intercepted.
        """
        pipeline, parts = self.pipeline, self._parts
        is_anew = parts.have_other_denoisers(pipeline) or parts.are_bypassed
        if is_anew:
            self._drop_region()
            parts.refresh_denoisers(pipeline)
            self._region = self._make_region(self.strategy, parts.denoisers, parts)
            self._kind = self.strategy.region
        if is_anew or self._has_other_parts(pipeline):
            parts.refresh_others(pipeline)
        if self.strategy.region == "step" and parts.scheduler is None:
            got = getattr(pipeline, "scheduler", None)
            raise UnsupportedModelError(messages.NO_SCHEDULER, name=self._name, got=got)
        for model, cache in caches_on(parts.denoisers):
            but = f"a cache of diffusers ({cache}) is at work on {model}, too"
            self.emit(Unlike(but))
            self._said.say(
                f"{but}: both skip work, the summary counts this library's share alone, and nothing is promised; "
                f"disable one of the two (disable_cache() of the {model}, or omnireuse.disable)"
            )

    def _drop_region(self) -> None:
        if self._region is not None:
            self._region.undo()
            self._region = None

    def _region_for(self, strategy: Strategy) -> Region:
        """The region of a run under a strategy."""
        if self._region is None or strategy.region != self._kind:
            return self._make_region(strategy, self._parts.denoisers, self._parts)
        return self._region.for_run()

    def _forecast_calls(self, run: Run, why: SeveralOutputsError) -> Region:
        """As it says, if that may be. The run has computed its first call, and remembers nothing yet."""
        if self.extension(ByCalls) is None:
            raise why
        logger.warning("%s: switching to region 'call' for this pipeline", why)
        self.emit(FellBack("region call"))
        strategy = self.strategy = replace(self.strategy, region="call", shared_cfg_decision=True)
        region = self._make_region(strategy, self._parts.denoisers, self._parts)
        run.region, run.generation.strategy = region, strategy
        return region
