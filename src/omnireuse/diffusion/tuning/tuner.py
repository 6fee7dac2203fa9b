"""Tuning at work on one pipeline: each call is measured, followed by shadows, or served by a frozen plan."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import torch

from omnireuse.diffusion.calibration.origin import versions
from omnireuse.diffusion.calibration.plan import Plan
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.reuse.guidance import scales_of
from omnireuse.diffusion.reuse.present import counted
from omnireuse.diffusion.reuse.runtime.run import Chosen, RunStart
from omnireuse.diffusion.reuse.runtime.session import Session
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.tuning.budget import Budget, budget_for
from omnireuse.diffusion.tuning.configuration import Configuration, conditions_of
from omnireuse.diffusion.tuning.full_run import FullRun
from omnireuse.diffusion.tuning.recording import FULL, Recording
from omnireuse.diffusion.tuning.replay import Replay
from omnireuse.diffusion.tuning.shadows import Following, Leading
from omnireuse.diffusion.tuning.state import Tuning
from omnireuse.diffusion.tuning.store import Store
from omnireuse.diffusion.tuning.trials import MakeRegion, MeasuredCall, Trials
from omnireuse.errors import UnsupportedModelError

__all__ = ["MOST_FAILURES", "Tuner"]

logger = logging.getLogger("omnireuse")

MOST_FAILURES = 3
"""Failures in a row that end tuning of a configuration."""


@dataclass(eq=False)
class _Entry:
    """One configuration with one number of computed steps."""

    configuration: Configuration
    budget: Budget
    tuning: Tuning
    strategy: Strategy | None = None
    calls: list[MeasuredCall] = field(default_factory=list)
    trials: Trials | None = None
    failures: int = 0
    lock: Any = None
    is_busy: bool = False


class _Attempt:
    """One call of the pipeline: what its run belongs to, and the recording of it."""

    def __init__(self) -> None:
        self.runs = 0
        self.entry: _Entry | None = None
        self.recording: Recording | None = None


class Tuner:
    """Measures the first pictures of each configuration, and serves the others with the plan that suits them.

    Calls of one pipeline in several threads measure one at a time; the others compute every step meanwhile.

    Args:
        session: at work on the pipeline.
        strategy: the untuned default, in region "step" with a schedule.
        pictures: how many are measured at most, ≥ 1.
        store: keeps plans.
    """

    def __init__(self, session: Session, strategy: Strategy, *, pictures: int, store: Store) -> None:
        self._session, self._strategy, self._wanted, self._store = session, strategy, pictures, store
        self._lock = threading.RLock()
        self._entries: dict[tuple[str, int], _Entry] = {}
        self._latest: _Entry | None = None
        self._elsewhere = Tuning(state="measuring", wanted=pictures, reason="no run has begun yet")
        """Holds where the latest run has no configuration."""
        self._is_closed = False
        session.around = self.around

    @property
    def tuning(self) -> Tuning:
        """What tuning has come to for the configuration of the latest run."""
        with self._lock:
            return self._elsewhere if self._latest is None else self._latest.tuning

    def close(self) -> None:
        """Drop what was measured, and let other processes measure."""
        with self._lock:
            self._is_closed = True
            for entry in self._entries.values():
                self._drop(entry)
                self._release(entry)

    def around(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make one call of the pipeline."""
        self._finish_pending(proceed)
        pipeline, attempt = self._session.pipeline, _Attempt()
        replay = self._replay(args, kwargs)
        scales = scales_of(pipeline, *args, **kwargs)

        def choose(start: RunStart) -> Chosen:
            return self._choose(attempt, start, scales, replay)

        try:
            if isinstance(replay, Replay) and self._may_measure():
                with replay.noting(pipeline):
                    result = self._session.call(proceed, args, kwargs, choose)
            else:
                result = self._session.call(proceed, args, kwargs, choose)
            self._measured(attempt, replay, proceed)
        except BaseException as error:
            if attempt.recording is not None and attempt.entry is not None:
                self._broken_off(attempt.entry, error)
            raise
        finally:
            if attempt.recording is not None and attempt.entry is not None:
                attempt.entry.is_busy = False
        return result

    # -- before a run -------------------------------------------------------------------------------------------------

    @staticmethod
    def _replay(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Replay | str:
        try:
            return Replay(args, kwargs)
        except Exception as error:  # a call that cannot be made again is not measured, and that is said
            return str(error)

    def _may_measure(self) -> bool:
        with self._lock:
            return self._latest is None or self._latest.tuning.state != "ready"

    def _choose(self, attempt: _Attempt, start: RunStart, scales: Mapping[str, float], replay: Replay | str) -> Chosen:
        attempt.runs += 1
        if attempt.runs > 1:
            if attempt.recording is not None:
                attempt.recording.fail("a call has several runs", is_permanent=True)
                return Chosen(strategy=FULL, region=Recording(None, 0, keeps=False), kind="measured")
            return Chosen(strategy=self._strategy)
        with self._lock:
            entry = self._entry(start, scales)
            self._latest = entry
            if entry is None:
                return Chosen(strategy=self._strategy)
            attempt.entry = entry
            if entry.tuning.state == "ready" and entry.strategy is not None:
                return Chosen(strategy=entry.strategy)
            if entry.tuning.state != "measuring":
                return Chosen(strategy=self._strategy)
            if isinstance(replay, str):
                self._end(entry, "failed", f"a call cannot be made again: {replay}")
                return Chosen(strategy=self._strategy)
            recording = Recording(start.scheduler, start.total or 0, keeps=not entry.is_busy)
            if not entry.is_busy:
                entry.is_busy = True
                attempt.recording = recording
            return Chosen(strategy=FULL, region=recording, kind="measured")

    def _entry(self, start: RunStart, scales: Mapping[str, float]) -> _Entry | None:
        pipeline = self._session.pipeline
        budget = budget_for(self._strategy.policy, start)
        if isinstance(budget, str):
            self._elsewhere = Tuning(state="off", wanted=self._wanted, reason=budget)
            return None
        configuration = Configuration.of(pipeline, start, scales, conditions_of(pipeline))
        key = (configuration.digest, len(budget.steps))
        if key in self._entries:
            return self._entries[key]
        entry = self._entries[key] = _Entry(
            configuration,
            budget,
            Tuning(state="measuring", wanted=self._wanted, reason="the first pictures are measured"),
        )
        known = self._store.load(configuration.digest)
        plan = None if known is None else known.plans.get(len(budget.steps))
        if known is not None and plan is not None:
            self._take(entry, known, plan, str(self._store.file(configuration.digest)))
            return entry
        entry.lock = self._store.lock(configuration.digest)
        if entry.lock is None:
            self._end(entry, "off", "another process measures this configuration")
            return entry
        logger.info(
            "tuning begins for runs of %d steps: the first %s, then %d steps compute",
            len(configuration.noises),
            "picture is computed in full" if self._wanted == 1 else f"{self._wanted} pictures are computed in full",
            len(budget.steps),
        )
        return entry

    # -- after a run --------------------------------------------------------------------------------------------------

    def _measured(self, attempt: _Attempt, replay: Replay | str, proceed: Callable[..., Any]) -> None:
        entry, recording = attempt.entry, attempt.recording
        if entry is None or recording is None or not isinstance(replay, Replay) or self._is_closed:
            return
        if not recording.is_whole:
            self._failed(entry, recording.failure or "a run ended before its last step", recording.is_permanent)
            return
        try:
            full = FullRun.of(recording)
        except UnsupportedModelError as error:
            self._failed(entry, str(error), is_permanent=True)
            return
        except Exception as error:  # the picture is done, and must not fail because measuring it does
            self._failed(entry, f"{type(error).__name__}: {error}")
            return
        with self._lock:
            entry.calls.append(MeasuredCall(replay=replay, full=full))
            pictures = sum(call.full.pictures for call in entry.calls)
            self._note(entry, pictures=pictures)
        # The first call alone takes its usual time.
        if len(entry.calls) > 1:
            self._go_on(entry, proceed)

    def _finish_pending(self, proceed: Callable[..., Any]) -> None:
        """Finish what the first call alone has measured wholly: its shadows come before the second call."""
        with self._lock:
            due = [
                entry
                for entry in self._entries.values()
                if entry.tuning.state == "measuring" and entry.tuning.pictures >= self._wanted and not entry.is_busy
            ]
            for entry in due:
                entry.is_busy = True
        for entry in due:
            try:
                self._go_on(entry, proceed)
            finally:
                entry.is_busy = False

    def _go_on(self, entry: _Entry, proceed: Callable[..., Any]) -> None:
        """Make the shadows that are due; decide where all pictures are measured."""
        try:
            if entry.trials is None:
                budget = entry.budget
                entry.trials = Trials(budget.steps, reuses=budget.reuses, noises=budget.noises)
            trials, shadow = entry.trials, partial(self._shadow, proceed)
            trials.try_default(entry.calls, shadow)
            entry.failures = 0
            if entry.tuning.pictures >= self._wanted:
                trials.try_plan(entry.calls, shadow, len(entry.calls) - trials.runs)
                self._decide(entry)
            else:
                self._note(entry)
        except Exception as error:  # the picture is done, and must not fail because a shadow does
            self._failed(entry, f"{type(error).__name__}: {error}", isinstance(error, UnsupportedModelError))

    def _shadow(
        self, proceed: Callable[..., Any], call: MeasuredCall, strategy: Strategy, make_region: MakeRegion
    ) -> tuple[Following | Leading, torch.Tensor]:
        made: list[Following | Leading] = []

        def choose(start: RunStart) -> Chosen:
            made.append(make_region(start.scheduler))
            return Chosen(strategy=strategy, region=made[-1], kind="shadow")

        outside = self._session.calls_outside
        try:
            latents = call.replay.shadow(
                self._session.pipeline, lambda *args, **kwargs: self._session.call(proceed, args, kwargs, choose)
            )
        finally:
            self._session.calls_outside = outside
        return made[0], latents

    def _decide(self, entry: _Entry) -> None:
        assert entry.trials is not None
        plan, runs = entry.trials.plan(), self._runs(entry)
        total, known = len(entry.budget.noises), self._store.load(entry.configuration.digest)
        if plan is None:
            # Kept as well, so that the next process measures nothing again.
            plan = Plan(
                steps=entry.budget.steps if entry.budget.reuses else tuple(range(total)),
                forecaster="blend",
                psnr=None,
                held_out=(),
                evidence=entry.trials.default_evidence(),
            )
        evidence = msgspec.structs.replace(plan.evidence or entry.trials.default_evidence(), runs=round(runs, 2))
        plan = msgspec.structs.replace(plan, evidence=evidence)
        count = len(entry.budget.steps)
        profile = _profile_of(entry, {**(known.plans if known is not None else {}), count: plan})
        path = self._store.save(entry.configuration.digest, profile)
        self._note(entry)
        self._take(entry, profile, plan, None if path is None else str(path))
        logger.info("tuning has ended: %s", entry.tuning)
        self._drop(entry)
        self._release(entry)

    def _take(self, entry: _Entry, profile: Profile, plan: Plan, path: str | None) -> None:
        entry.strategy = plan.strategy(profile.coordinates) if plan.weights else self._strategy
        evidence, total = plan.evidence, profile.num_inference_steps
        expected, text = None, "the untuned default stays; no plan was clearly closer"
        if evidence is not None and plan.weights:
            expected = sum(evidence.errors) / len(evidence.errors)
            text = f"{len(plan.steps)} of {total} steps computed, {expected:.2%} error of the final latents expected"
            if evidence.untuned:
                text += f" ({sum(evidence.untuned) / len(evidence.untuned):.2%} untuned)"
        if evidence is not None:
            text += f", on {counted(len(evidence.errors), 'measured picture')}"
        entry.tuning = Tuning(
            state="ready",
            pictures=len(evidence.errors) if evidence is not None else 0,
            wanted=self._wanted,
            runs=0.0 if evidence is None else evidence.runs,
            expected=expected,
            path=path,
            reason=text,
        )

    def _runs(self, entry: _Entry) -> float:
        return len(entry.calls) + (0.0 if entry.trials is None else entry.trials.runs)

    def _note(self, entry: _Entry, *, pictures: int | None = None) -> None:
        tuning = entry.tuning
        entry.tuning = Tuning(
            state=tuning.state,
            pictures=tuning.pictures if pictures is None else pictures,
            wanted=tuning.wanted,
            runs=round(self._runs(entry), 2),
            reason=tuning.reason,
        )

    def _broken_off(self, entry: _Entry, error: BaseException) -> None:
        """A picture or its shadows have ended with an error, which goes on to the user."""
        if isinstance(error, Exception):
            self._failed(entry, f"a picture has failed ({type(error).__name__})")
            return
        # An interrupt says nothing about the pipeline.
        with self._lock:
            self._drop(entry)
            self._note(entry, pictures=0)

    def _failed(self, entry: _Entry, why: str, is_permanent: bool = False) -> None:
        """What was measured is dropped; the next picture measures anew, unless that is known to be in vain."""
        with self._lock:
            entry.failures += 1
            self._drop(entry)
            if is_permanent or entry.failures >= MOST_FAILURES:
                self._end(entry, "failed", why)
                return
            logger.info("measuring begins anew with the next picture: %s", why)
            self._note(entry, pictures=0)

    def _end(self, entry: _Entry, state: str, why: str) -> None:
        entry.tuning = Tuning(state=state, wanted=self._wanted, reason=why)  # type: ignore[arg-type]  # one of the two
        self._release(entry)
        (logger.warning if state == "failed" else logger.info)("%s", entry.tuning)

    @staticmethod
    def _drop(entry: _Entry) -> None:
        entry.calls, entry.trials = [], None

    @staticmethod
    def _release(entry: _Entry) -> None:
        if entry.lock is not None:
            entry.lock.release()
            entry.lock = None


def _profile_of(entry: _Entry, plans: Mapping[int, Plan]) -> Profile:
    configuration = entry.configuration
    conditions = configuration.conditions
    return Profile(
        model=conditions["model"],
        config_digest=conditions["config"],
        scheduler=configuration.scheduler,
        num_inference_steps=len(configuration.noises),
        coordinates=entry.budget.noises,
        call={name: repr(value) for name, value in configuration.guidance.items()},
        prompts_digest="",
        num_prompts=(entry.tuning.pictures, 0),
        seed=0,
        created=datetime.date.today().isoformat(),
        versions=versions(),
        cost_in_runs=round(entry.tuning.runs, 1),
        complete=True,
        measured=None,
        plans=dict(sorted(plans.items())),
        dtype=conditions["dtype"],
        command="omnireuse.enable(pipe)",
    )
