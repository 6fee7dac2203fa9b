"""Whole requests on one pipeline: each is served by `enable` with the settings that it asks for."""

from __future__ import annotations

import logging
from typing import Any

import torch.distributed as dist

from omnireuse.diffusion.handle import Handle
from omnireuse.diffusion.pipelines import enable
from omnireuse.diffusion.reuse.runtime.calls import Calls
from omnireuse.diffusion.reuse.runtime.interception import Interception, intercept
from omnireuse.diffusion.tuning.tuner import Tuner
from omnireuse.integrations.request import figures_of
from omnireuse.integrations.settings import KEY, RequestSettings, ServerSettings

__all__ = ["WholeRequests"]

logger = logging.getLogger("omnireuse")


class WholeRequests:
    """Reuse on one pipeline that serves one request, or one batch of requests, after the other.

    Requests that follow the server's own settings are measured and tuned. Those that ask for something else are not:
    what one client asks for would cost the others the time of its shadows.

    Args:
        settings: of the server.
        calls: reads the calls of an engine that calls the pipeline's `forward` with a request; None for an engine that
            calls the pipeline itself.
    """

    def __init__(self, settings: ServerSettings, calls: Calls | None = None) -> None:
        self._settings, self._calls = settings, calls
        self._handle: Handle | None = None
        self._taken: Interception | None = None
        self._tuner: Tuner | None = None
        """What was measured so far, while other settings are served."""
        self._active = RequestSettings()
        self._said = ""

    def begin(
        self, pipeline: Any, wanted: RequestSettings, *, group: dist.ProcessGroup | None = None, tunes: bool = True
    ) -> None:
        """Prepare the pipeline for what the next request asks for. Costs nothing where the last one asked for the same.

        Args:
            pipeline: that serves the request.
            wanted: its settings.
            group: the ranks that decide together; None for those that the model itself names.
            tunes: whether pictures may be measured; not where ranks share a forward pass.

        Raises:
            ConfigError: a target that cannot be reached; it says what can be had.
            StateError: a profile of another pipeline.
        """
        if self._handle is not None and wanted == self._active:
            return
        self.end()
        if not wanted.off:
            tune = self._settings.tune if tunes and not wanted.targets else False
            handle = enable(pipeline, group=group, tune=tune, **self._settings.enable_arguments(wanted))
            if self._tuner is not None and not wanted.targets:
                handle.resume(self._tuner)
                self._tuner = None
            if self._calls is not None:
                self._taken = intercept(pipeline, self, {"forward": handle.take_calls(self._calls)})
            self._handle = handle
        self._active = wanted

    def end(self) -> None:
        """Leave the pipeline as it was. What was measured is kept for the next request that tuning serves."""
        if self._taken is not None:
            self._taken.undo()
            self._taken = None
        if self._handle is not None:
            tuner = self._handle.suspend()
            self._tuner = self._tuner if tuner is None else tuner
            self._handle = None

    def figures(self) -> dict[str, float]:
        """The metrics of the last request; empty where it asked for no reuse."""
        if self._handle is None or not (events := self._handle.events):
            return {}
        steps: dict[int, bool] = {}
        for event in reversed(events):
            if event.run != events[-1].run:
                break
            steps[event.step] = steps.get(event.step, True) and event.reused
        reused = sum(steps.values())
        return figures_of(self._handle.summary().promise, len(steps) - reused, reused) | self._tuning()

    def _tuning(self) -> dict[str, float]:
        """Whether the last request was served by a tuned plan; how many pictures are measured. Logs what is new."""
        assert self._handle is not None, "a request was served"
        tuning = self._handle.tuning
        if str(tuning) != self._said:
            self._said = str(tuning)
            logger.info("omnireuse: %s", tuning)
        if tuning.state == "off":
            return {}
        return {f"{KEY}_tuned": float(tuning.state == "ready"), f"{KEY}_pictures_measured": float(tuning.pictures)}
