"""Audits: some delivered pictures are compared with full runs, so that a fleet knows what reuse leaves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from omnireuse.errors import StateError
from omnireuse.hooks.extension import Extension, PipelineCall
from omnireuse.hooks.live import StepRegion
from omnireuse.hooks.run import Chosen, RunStart
from omnireuse.hooks.session import Session
from omnireuse.loop.events import Audit, FellBack
from omnireuse.tuning.recording import FULL, Recording, relative_errors
from omnireuse.tuning.replay import Replay
from omnireuse.tuning.trials import replayed

__all__ = ["Auditor"]

logger = logging.getLogger("omnireuse")


class Auditor(Extension):
    """Makes a share of the pipeline's calls again in full, after their pictures are done.

    Args:
        share: of the calls, above 0.
        tolerance: relative L1 error that is promised; None if none is.
    """

    def __init__(self, share: float, tolerance: float | None) -> None:
        self._share, self._tolerance = share, tolerance
        self._lock, self._owed, self._calls = threading.Lock(), 0.0, 0

    def attach(self, session: Session) -> None:
        self._session = session

    def around(self, call: PipelineCall, make: Callable[[PipelineCall], Any]) -> Any:
        """Make one call of the pipeline, and audit it if one is due."""
        with self._lock:
            self._calls += 1
            number = self._calls
            self._owed += self._share
            # The sum of many shares is a little below their number.
            is_due = self._owed >= 1 - 1e-9
            self._owed -= is_due
        if not is_due:
            return make(call)
        try:
            replay = Replay(call.args, call.kwargs)
        except Exception as error:  # a call that cannot be made again is not audited, and that is said
            self._miss(f"a call cannot be made again: {error}")
            return make(call)
        result = make(call)
        made = self._session.final
        try:
            if made is None:
                raise StateError("the call has given the scheduler no step")
            self._compare(number, made, replay, call)
        except Exception as error:  # the picture is done, and must not fail because its audit does
            self._miss(f"{type(error).__name__}: {error}")
        return result

    def _compare(self, number: int, made: torch.Tensor, replay: Replay, call: PipelineCall) -> None:
        session, made = self._session, made.clone()

        def choose(start: RunStart) -> Chosen:
            region = StepRegion(stepper=Recording(None, 0, keeps=False))
            return Chosen(strategy=FULL, region=region, kind="uncounted")

        replayed(session, replay, call, choose)
        full = session.final
        if full is None or full.shape != made.shape:
            raise StateError("a second call with the same arguments has other latents")
        errors = tuple(relative_errors(made, full))
        is_broken = self._tolerance is not None and max(errors) > self._tolerance
        session.emit(Audit(call=number, errors=errors, tolerance=self._tolerance))
        level = logging.WARNING if is_broken else logging.INFO
        promised = f", above the tolerance of {self._tolerance:g}" if is_broken else ""
        logger.log(level, "audit of call %d: %.2f%% error of the final latents%s", number, 100 * max(errors), promised)

    def _miss(self, why: str) -> None:
        self._session.emit(FellBack("no audit"))
        logger.warning("a picture was not audited: %s", why)
