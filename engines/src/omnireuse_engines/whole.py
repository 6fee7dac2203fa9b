"""Whole requests on one pipeline: each is served by `enable` with the settings that it asks for."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from omnireuse import Handle, enable
from omnireuse.hooks.interception import Interception, MethodCall, intercept
from omnireuse.hooks.session import Session, session_of
from omnireuse.loop.events import RequestBegan
from omnireuse.pipelines.call_arguments import Calls
from omnireuse.tuning.tuner import Tuner
from omnireuse_engines.request import figures_of, tuning_figures, work_figures
from omnireuse_engines.settings import RequestSettings, ServerSettings

__all__ = ["WholeRequests"]

logger = logging.getLogger("omnireuse")


class WholeRequests:
    """Reuse on one pipeline that serves one request, or one batch of requests, after the other.

    Requests that follow the server's own settings are measured and tuned. Those that ask for something else are not:
    the wish of one client would cost the others the time of its trial runs.

    Args:
        settings: of the server.
        calls: reads the calls of an engine that calls the pipeline's `forward` with a request; None for an engine that
            calls the pipeline itself.
    """

    def __init__(self, settings: ServerSettings, calls: Calls | None = None) -> None:
        self._settings, self._calls = settings, calls
        self._handle: Handle | None = None
        self._session: Session | None = None
        self._taken: Interception | None = None
        self._tuner: Tuner | None = None
        """The tuning so far, while other settings are served."""
        self._active = RequestSettings()
        self._said = ""

    def begin(
        self, pipeline: object, wanted: RequestSettings, *, group: dist.ProcessGroup | None = None, tunes: bool = True
    ) -> None:
        """Prepare the pipeline for what the next request asks for. Costs nothing if the last one asked for the same.

        A profile's promise is judged for each request by itself: one that is unlike the profile's runs loses its own.

        Args:
            group: the ranks that decide together; None for those that the model itself names.
            tunes: whether pictures may be measured; not if ranks share a forward pass.
        """
        if self._session is not None and wanted == self._active:
            self._session.emit(RequestBegan())
            return
        self.end()
        if not wanted.off:
            tune = self._settings.tune if tunes and not wanted.target else False
            self._handle = enable(pipeline, group=group, tune=tune, **self._settings.enable_arguments(wanted))
            self._session = session_of(pipeline)
            assert self._session is not None, "reuse was enabled"
            if self._tuner is not None and not wanted.target:
                if (unused := self._handle.extension(Tuner)) is not None:
                    unused.close()
                    self._handle.detach(unused)
                self._handle.attach(self._tuner)
                self._tuner = None
            if self._calls is not None:
                self._taken = self._taken_by(self._session, self._calls)
        self._active = wanted

    def _taken_by(self, session: Session, calls: Calls) -> Interception:
        """Hand the calls of `forward` to a session, as if they were the pipeline's own."""
        if (tuner := session.extension(Tuner)) is not None:
            tuner.calls = calls

        def forward(call: MethodCall) -> Any:
            is_own = self._handle is None or not self._handle.enabled or session.is_in_call
            return call.make() if is_own else session.called(call)

        return intercept(session.pipeline, self, {"forward": forward})

    def end(self) -> None:
        """Leave the pipeline as it was. What was measured is kept for the next request that tuning serves."""
        if self._taken is not None:
            self._taken.undo()
            self._taken = None
        if self._handle is not None and self._session is not None:
            if (tuner := self._handle.extension(Tuner)) is not None:
                self._tuner = tuner
                self._handle.detach(tuner)
            self._handle.disable()
            self._handle = self._session = None

    def forget(self) -> None:
        """Leave the pipeline as it was, and drop what was measured of it: it has other weights."""
        self.end()
        if self._tuner is not None:
            self._tuner.close()
            self._tuner = None

    def figures(self) -> dict[str, Any]:
        """The figures for the last request's response; empty if it asked for no reuse."""
        if self._handle is None or not (events := self._handle.events):
            return {}
        steps: dict[int, bool] = {}
        for event in reversed(events):
            if event.run != events[-1].run:
                break
            steps[event.step] = steps.get(event.step, True) and event.reused
        reused = sum(steps.values())
        summary = self._handle.summary()
        return figures_of(summary.name, summary.promise, len(steps) - reused, reused) | self._tuning()

    def _tuning(self) -> dict[str, float]:
        """Whether a tuned plan served the last request, and the number of measured pictures. Logs news."""
        assert self._handle is not None, "a request was served"
        tuning, work = self._handle.tuning, work_figures(self._handle.extension(Tuner))
        if str(tuning) != self._said and not self._active.target:
            self._said = str(tuning)
            logger.info("omnireuse: %s", tuning)
        if tuning.state in ("off", "waiting"):
            return work
        return tuning_figures(tuning.state == "ready", tuning) | work
