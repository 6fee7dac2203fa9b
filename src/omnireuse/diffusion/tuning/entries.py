"""The configurations that a process tunes, whatever host makes its runs: what is measured, tried, decided and kept."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omnireuse.diffusion.calibration.origin import Origin, versions
from omnireuse.diffusion.calibration.plan import Plan
from omnireuse.diffusion.calibration.profile import Profile
from omnireuse.diffusion.reuse.present import counted
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.diffusion.tuning.budget import Budget
from omnireuse.diffusion.tuning.configuration import Configuration
from omnireuse.diffusion.tuning.state import Tuning
from omnireuse.diffusion.tuning.store import Store
from omnireuse.diffusion.tuning.tolerance import ToleranceTrials, trials_for
from omnireuse.diffusion.tuning.trials import MeasuredCall, Shadows, Trials
from omnireuse.errors import UnsupportedModelError

__all__ = ["MOST_FAILURES", "Entries", "Entry"]

logger = logging.getLogger("omnireuse")

MOST_FAILURES = 3
"""Failures in a row that end tuning of a configuration."""


@dataclass(eq=False)
class Entry:
    """One configuration with one number of computed steps."""

    configuration: Configuration
    budget: Budget
    tuning: Tuning
    strategy: Strategy | None = None
    profile: Profile | None = None
    calls: list[MeasuredCall] = field(default_factory=list)
    trials: Trials | ToleranceTrials | None = None
    failures: int = 0
    lock: Any = None
    is_busy: bool = False


class Entries:
    """The entries of one process. A host finds the entry of each run, hands in what it has measured, and makes shadows.

    Args:
        pictures: how many are measured at most, ≥ 1.
        store: keeps plans.
        command: what made a plan, for its file.

    Attributes:
        lock: guards the entries.
    """

    def __init__(self, *, pictures: int, store: Store, command: str) -> None:
        self.pictures, self._store, self._command = pictures, store, command
        self.lock = threading.RLock()
        self._entries: dict[tuple[str, int], Entry] = {}

    def find(self, configuration: Configuration, budget: Budget) -> Entry:
        """The entry of a run: "ready" with a plan of the store; else "measuring", unless another process measures."""
        if budget.tolerance is not None:
            call = {**configuration.call, "tolerance": repr(budget.tolerance)}
            configuration = msgspec.structs.replace(configuration, call=call)
        key = (configuration.digest, len(budget.steps))
        if key in self._entries:
            return self._entries[key]
        entry = self._entries[key] = Entry(
            configuration,
            budget,
            Tuning(state="measuring", wanted=self.pictures, reason="the first pictures are measured"),
        )
        known = self._store.load(configuration.digest)
        plan = None if known is None else budget.plan_of(known.plans)
        if known is not None and plan is not None:
            self._take(entry, known, plan, str(self._store.file(configuration.digest)))
            return entry
        entry.lock = self._store.lock(configuration.digest)
        if entry.lock is None:
            self.end(entry, "off", "another process measures this configuration")
            return entry
        return entry

    def start(self, entry: Entry) -> None:
        """A picture is being measured, until the host says that the entry is busy no more."""
        entry.is_busy = True
        if entry.calls or entry.failures:
            return
        logger.info(
            "tuning begins for runs of %d steps: the first %s, then %s",
            len(entry.budget.noises),
            "picture is computed in full" if self.pictures == 1 else f"{self.pictures} pictures are computed in full",
            entry.budget.words,
        )

    def add(self, entry: Entry, call: MeasuredCall) -> None:
        """Note a measured call."""
        with self.lock:
            entry.calls.append(call)
            self._note(entry, pictures=sum(each.full.pictures for each in entry.calls))

    def is_whole(self, entry: Entry) -> bool:
        """Whether all pictures are measured, and nothing is decided."""
        return entry.tuning.state == "measuring" and entry.tuning.pictures >= self.pictures

    def whole(self) -> list[Entry]:
        """The entries of which nothing but shadows is missing, and that nobody is at work on."""
        return [entry for entry in self._entries.values() if self.is_whole(entry) and not entry.is_busy]

    def keep_few(self, entry: Entry, most: int) -> None:
        """Drop what was measured of other configurations, the eldest first, until `most` are left with this one."""
        others = [each for each in self._entries.values() if each.calls and each is not entry]
        for each in others[: max(len(others) + 1 - most, 0)]:
            self.begin_anew(each, f"{most} other configurations are measured")

    def go_on(self, entry: Entry, shadows: Shadows) -> None:
        """Make the shadows that are due; decide where all pictures are measured."""
        try:
            if entry.trials is None:
                entry.trials = trials_for(entry.budget, entry.calls)
            entry.trials.run(entry.calls, shadows, is_whole=self.is_whole(entry))
            entry.failures = 0
            if self.is_whole(entry):
                self._decide(entry, entry.trials)
            else:
                self._note(entry)
        except Exception as error:  # the picture is done, and must not fail because a shadow does
            self.failed(entry, f"{type(error).__name__}: {error}", isinstance(error, UnsupportedModelError))

    def failed(self, entry: Entry, why: str, is_permanent: bool = False) -> None:
        """What was measured is dropped; the next picture measures anew, unless that is known to be in vain."""
        with self.lock:
            entry.failures += 1
            if is_permanent or entry.failures >= MOST_FAILURES:
                self.drop(entry)
                self.end(entry, "failed", why)
                return
            self.begin_anew(entry, why)

    def begin_anew(self, entry: Entry, why: str) -> None:
        """What was measured is dropped, and the next picture measures anew."""
        with self.lock:
            self.drop(entry)
            logger.info("measuring begins anew with the next picture: %s", why)
            self._note(entry, pictures=0)

    def end(self, entry: Entry, state: str, why: str) -> None:
        """Measure no more; the untuned default serves."""
        entry.tuning = Tuning(state=state, wanted=self.pictures, reason=why)  # type: ignore[arg-type]  # one of the two
        self._release(entry)
        (logger.warning if state == "failed" else logger.info)("%s", entry.tuning)

    def close(self) -> None:
        """Drop what was measured, and let other processes measure."""
        with self.lock:
            for entry in self._entries.values():
                self.drop(entry)
                self._release(entry)

    @staticmethod
    def drop(entry: Entry) -> None:
        """Drop the values that were measured."""
        entry.calls, entry.trials = [], None

    def _decide(self, entry: Entry, trials: Trials | ToleranceTrials) -> None:
        plan, runs = trials.plan(), self._runs(entry)
        total, known = len(entry.budget.noises), self._store.load(entry.configuration.digest)
        if plan is None:
            # Kept as well, so that the next process measures nothing again.
            plan = Plan(
                steps=entry.budget.steps if entry.budget.reuses else tuple(range(total)),
                forecaster="blend",
                psnr=None,
                held_out=(),
                evidence=trials.default_evidence(),
            )
        evidence = msgspec.structs.replace(plan.evidence or trials.default_evidence(), runs=round(runs, 2))
        plan = msgspec.structs.replace(plan, evidence=evidence)
        profile = self._profile(entry, entry.budget.beside(known.plans if known is not None else {}, plan))
        path = self._store.save(entry.configuration.digest, profile)
        self._note(entry)
        self._take(entry, profile, plan, None if path is None else str(path))
        logger.info("tuning has ended: %s", entry.tuning)
        self.drop(entry)
        self._release(entry)

    def _take(self, entry: Entry, profile: Profile, plan: Plan, path: str | None) -> None:
        # Without a strategy of its own the untuned default serves.
        entry.profile = profile
        entry.strategy = plan.strategy(profile.coordinates) if plan.weights else None
        evidence, total = plan.evidence, profile.num_inference_steps
        expected, text = None, f"the untuned default stays; {entry.budget.none_found}"
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
            wanted=self.pictures,
            runs=0.0 if evidence is None else evidence.runs,
            expected=expected,
            path=path,
            reason=text,
        )

    @staticmethod
    def _runs(entry: Entry) -> float:
        return len(entry.calls) + (0.0 if entry.trials is None else entry.trials.runs)

    def _note(self, entry: Entry, *, pictures: int | None = None) -> None:
        tuning = entry.tuning
        entry.tuning = Tuning(
            state=tuning.state,
            pictures=tuning.pictures if pictures is None else pictures,
            wanted=tuning.wanted,
            runs=round(self._runs(entry), 2),
            reason=tuning.reason,
        )

    @staticmethod
    def _release(entry: Entry) -> None:
        if entry.lock is not None:
            entry.lock.release()
            entry.lock = None

    def _profile(self, entry: Entry, plans: Mapping[int, Plan]) -> Profile:
        configuration = entry.configuration
        conditions = configuration.conditions
        return Profile(
            model=conditions.model,
            config_digest=conditions.config_digest,
            scheduler=conditions.scheduler,
            num_inference_steps=len(configuration.noises),
            coordinates=entry.budget.noises,
            call=configuration.call,
            prompts_digest="",
            num_prompts=(entry.tuning.pictures, 0),
            seed=0,
            created=datetime.date.today().isoformat(),
            versions=versions(),
            cost_in_runs=round(entry.tuning.runs, 1),
            complete=True,
            measured=None,
            plans=dict(sorted(plans.items())),
            dtype=conditions.dtype,
            origin=Origin(weights=conditions.weights, adapters=conditions.adapters, holding=conditions.holding),
            autocast=conditions.autocast,
            hooks=conditions.hooks,
            guider=conditions.guider,
            command=self._command,
        )
