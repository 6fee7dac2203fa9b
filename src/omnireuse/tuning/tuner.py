"""Tuning at work on one pipeline: each call is measured, followed by shadows, or served by a frozen plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from omnireuse.arguments.tune import TURN_OFF
from omnireuse.hooks.run import Chosen, RunStart
from omnireuse.hooks.session import Loop, Session
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.call_arguments import Calls
from omnireuse.profiles.profile import Profile
from omnireuse.summary.tuning import Tuning
from omnireuse.tuning.budget import budget_for
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.driven import DrivenRegion
from omnireuse.tuning.entries import Entries, Entry
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.recording import FULL, Recording
from omnireuse.tuning.replay import Replay, noting_bars
from omnireuse.tuning.shadows import SessionShadows
from omnireuse.tuning.store import Store

__all__ = ["Tuner"]

logger = logging.getLogger("omnireuse")


class _Attempt:
    """One call of the pipeline: what its run belongs to, and the recording of it."""

    def __init__(self) -> None:
        self.runs = 0
        self.loop: Loop | None = None
        self.entry: Entry | None = None
        self.recording: Recording | None = None
        self.bars: list[Any] = []
        self.is_full = False
        """Whether every step is computed because the picture is measured, here or by another thread."""

    def describe(self, words: str) -> None:
        """Say on the bars of the run what it is."""
        for bar in self.bars:
            if callable(describe := getattr(bar, "set_description", None)):
                own = str(getattr(bar, "desc", None) or "").removesuffix(": ")
                describe(f"{own}: {words}" if own else words)


class Tuner:
    """Measures the first pictures of each configuration, and serves the others with the plan that suits them.

    Calls of one pipeline in several threads measure one at a time; the others compute every step meanwhile.

    Args:
        session: at work on the pipeline.
        strategy: the untuned default, in region "step" with a schedule.
        pictures: how many are measured at most, ≥ 1.
        store: keeps plans.
        agreement: of ranks that share a forward pass.
        quality: PSNR in dB that nine of ten pictures reach; the untuned default then computes every step.

    Attributes:
        calls: reads the arguments of the pipeline's calls.
    """

    def __init__(
        self,
        session: Session,
        strategy: Strategy,
        *,
        pictures: int,
        store: Store,
        agreement: Agreement | None = None,
        quality: float | None = None,
    ) -> None:
        self._strategy, self._quality, self.calls = strategy, quality, Calls()
        self._entries = Entries(pictures=pictures, store=store, command="omnireuse.enable(pipe)", agreement=agreement)
        self._lock = self._entries.lock
        self._latest: Entry | None = None
        self._elsewhere = Tuning(state="measuring", wanted=pictures, reason="no run has begun yet")
        """Holds where the latest run has no configuration."""
        self._is_closed = False
        self.serve(session)

    def serve(self, session: Session) -> None:
        """Go on with another session on the same pipeline."""
        self._session = session
        session.surround(self.around, self._outside)

    @property
    def tuning(self) -> Tuning:
        """The state of tuning for the configuration of the latest run."""
        with self._lock:
            return self._elsewhere if self._latest is None else self._latest.tuning

    @property
    def profile(self) -> Profile | None:
        """A profile with the one plan of the latest run's target; None before it is ready."""
        with self._lock:
            entry = self._latest
            if entry is None or entry.profile is None:
                return None
            plan = entry.budget.plan_of(entry.profile.plans)
            plans = {count: each for count, each in entry.profile.plans.items() if each is plan}
            return msgspec.structs.replace(entry.profile, plans=plans)

    def measure_all(self) -> None:
        """Measure as many pictures as are wanted, whatever earlier processes have measured."""
        self._entries.measure_all()

    def close(self) -> None:
        """Drop what was measured, and let other processes measure."""
        with self._lock:
            self._is_closed = True
            self._entries.close()

    def around(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make one call of the pipeline."""
        if (why := self.calls.untunable(args, kwargs)) is not None:
            self._pass_by(why)
            return self._session.call(proceed, args, kwargs)
        self._finish(proceed, [entry for entry in self._entries.whole() if entry.trials is None])
        pipeline, attempt = self._session.pipeline, _Attempt()
        replay = self._replay(args, kwargs)
        arguments = self.calls.arguments(pipeline, args, kwargs)

        def choose(start: RunStart) -> Chosen:
            return self._choose(attempt, start, arguments, replay)

        try:
            if isinstance(replay, Replay) and self._may_measure():
                with replay.noting(pipeline), noting_bars(pipeline, self) as attempt.bars:
                    result = self._session.call(proceed, args, kwargs, choose)
            else:
                result = self._session.call(proceed, args, kwargs, choose)
            self._made(attempt, replay, proceed)
        except BaseException as error:
            if attempt.recording is not None and attempt.entry is not None:
                self._broken_off(attempt.entry, error)
            raise
        finally:
            if attempt.recording is not None and attempt.entry is not None:
                attempt.entry.is_busy = False
        return result

    def _outside(self, start: RunStart) -> Chosen:
        """The untuned default for a run that cannot be made again, because no call of the pipeline makes it."""
        self._pass_by(
            "a loop is measured where the pipeline's call makes it, so that it can be made again; put it into __call__ "
            "of an object with the scheduler and the denoiser"
        )
        return Chosen(strategy=self._session.strategy)

    def _pass_by(self, why: str) -> None:
        """Say, once for each reason, that the run which begins is not tuned."""
        computes_all, pictures = self._quality is not None, self._entries.pictures
        with self._lock:
            self._latest, before = None, self._elsewhere
            self._elsewhere = Tuning(state="off", wanted=pictures, computes_all=computes_all, reason=why)
        if self._elsewhere != before:
            logger.log(logging.WARNING if computes_all else logging.INFO, "%s", self._elsewhere)

    @staticmethod
    def _replay(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Replay | str:
        try:
            return Replay(args, kwargs)
        except Exception as error:  # a call that cannot be made again is not measured, and that is said
            return str(error)

    def _may_measure(self) -> bool:
        with self._lock:
            return self._latest is None or self._latest.tuning.state != "ready"

    def _choose(self, attempt: _Attempt, start: RunStart, arguments: Mapping[str, Any], replay: Replay | str) -> Chosen:
        attempt.runs += 1
        if attempt.runs > 1:
            if attempt.recording is not None:
                attempt.recording.fail("a call has several runs", is_permanent=True)
                return Chosen(strategy=FULL, region=DrivenRegion(attempt.recording), kind="measured")
            return Chosen(strategy=self._strategy)
        with self._lock:
            entry = self._entry(start, arguments)
            self._latest = entry
            if entry is None:
                return Chosen(strategy=self._strategy)
            attempt.entry = entry
            attempt.loop = self._session.loop
            if entry.tuning.state != "measuring" or (entry.is_whole and not entry.is_busy):
                return Chosen(strategy=entry.strategy or self._strategy)
            if isinstance(replay, str):
                self._entries.end(entry, "failed", f"a call cannot be made again: {replay}")
                return Chosen(strategy=self._strategy)
            recording = Recording(start.scheduler, start.total or 0, keeps=not entry.is_busy)
            if not entry.is_busy:
                self._entries.start(entry)
                attempt.recording = recording
                number = f"{entry.tuning.pictures + 1} of {entry.tuning.wanted}"
                attempt.describe(f"omnireuse measures picture {number} ({TURN_OFF})")
            attempt.is_full = True
            return Chosen(strategy=FULL, region=DrivenRegion(recording), kind="measured")

    def _entry(self, start: RunStart, arguments: Mapping[str, Any]) -> Entry | None:
        pipeline = self._session.pipeline
        budget = budget_for(self._strategy.policy, start, self._quality)
        if isinstance(budget, str):
            self._pass_by(budget)
            return None
        configuration = Configuration.of(pipeline, start, arguments)
        if configuration.conditions.weights is None:
            self._pass_by("weights cannot be told apart, because they are sharded or not in memory")
            return None
        return self._entries.find(configuration, budget)

    def _made(self, attempt: _Attempt, replay: Replay | str, proceed: Callable[..., Any]) -> None:
        """The picture is done: learn from it where it was measured, and make the shadows that are due."""
        entry, recording = attempt.entry, attempt.recording
        if entry is None or attempt.loop is None or self._is_closed:
            return
        self._entries.made(entry, attempt.loop.asked, is_full=attempt.is_full)
        if recording is None or not isinstance(replay, Replay):
            self._finish(proceed, self._entries.whole())
        elif self._entries.learn(entry, recording, lambda: FullRun.of(recording), replay):
            self._entries.go_on(entry, SessionShadows(self._session, proceed))

    def _broken_off(self, entry: Entry, error: BaseException) -> None:
        """A picture or its shadows have ended with an error, which goes on to the user."""
        if isinstance(error, Exception):
            self._entries.failed(entry, f"a picture has failed ({type(error).__name__})")
        else:
            # An interrupt says nothing about the pipeline.
            self._entries.begin_anew(entry, "it was interrupted")

    def _finish(self, proceed: Callable[..., Any], due: list[Entry]) -> None:
        """Make shadows of pictures that were all measured before this call, one at a time where a run takes long."""
        with self._lock:
            due = [entry for entry in due if not entry.is_busy]
            for entry in due:
                entry.is_busy = True
        for entry in due:
            try:
                self._entries.go_on(entry, SessionShadows(self._session, proceed))
            except BaseException:
                self._entries.begin_anew(entry, "its trial runs were interrupted")
                raise
            finally:
                entry.is_busy = False
