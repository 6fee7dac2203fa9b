"""A strategy at work on one pipeline, from `enable` until `disable` or the pipeline's end."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from omnireuse.hooks.attachment import Attachment, RegionFactory, decided
from omnireuse.hooks.interception import Interception, intercept
from omnireuse.hooks.others import Others
from omnireuse.hooks.run import Chooser, Run
from omnireuse.hooks.runs import Follower, Runs
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.strategy import Strategy

if TYPE_CHECKING:
    from omnireuse.hooks.inert import InertRuns
    from omnireuse.summary.counters import Stats

__all__ = ["Session", "session_of"]

logger = logging.getLogger("omnireuse")

Around = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""A function that makes one call of the pipeline by `Session.call`, with something before or after it:
`around(proceed, args, kwargs)`, where `proceed` is the pipeline's own call."""

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
        handle: the user's.
        follows: chooses the strategy of each run; None where `strategy` serves any.
        adapts: as for an `Attachment`.

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
        self.stats, self.handle, self._inert = stats, handle, inert
        self.runs = Runs(
            strategy,
            agreement or Agreement(),
            lambda strategy: self._attached.region_for(strategy),
            partial(decided, stats),
            self._ended,
            lambda: getattr(self.pipeline, "num_timesteps", None),
            follows,
        )
        self._around: Around | None = None
        others = Others(self._name, stats, lambda pipeline: session_of(pipeline) is not None)
        self._attached = Attachment(self._pipeline, make_region, self.runs, others, inert, stats, adapts=adapts)
        self._on_pipeline: Interception | None = None
        try:
            self._attached.refresh()
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

    def expect(self, num_inference_steps: int | None) -> None:
        """Drop all state; the next run has so many steps, if known, unless a scheduler says otherwise."""
        self._attached.refresh()
        self.runs.expect(num_inference_steps)

    def _ended(self, run: Run, is_complete: bool) -> None:
        self.stats.count_beside(self.runs.here.companions.take_calls())
        if run.generation.outputs.fell_back:
            self.stats.fell_back("forecasts of the raw output")
        for what in run.generation.fallbacks:
            self.stats.fell_back(what)
        self._inert.end(run, is_complete)

    def called(self, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Take a call of the pipeline."""
        if self.runs.here.depth:
            return self.call(proceed, args, kwargs)
        try:
            return (self._around or self.call)(proceed, args, kwargs)
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
        self._attached.refresh()
        outside = self.runs.calls_outside
        with self.runs.within_call(self.pipeline, args, kwargs, chooser) as here:
            result = proceed(*args, **kwargs)
            self.runs.end(is_complete=getattr(self.pipeline, "_interrupt", False) is not True)
        if not here.had_run:
            self._inert.no_run(self._name, is_called=self.runs.calls_outside != outside)
        return result
