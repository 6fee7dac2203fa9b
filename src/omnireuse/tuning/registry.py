"""The configurations that a process tunes, whatever host makes its runs, and the plans that are known of them."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from omnireuse.base.once import Once
from omnireuse.errors import NotTunableError, OmniReuseError
from omnireuse.hooks.run import RunStart
from omnireuse.policies.base import Policy
from omnireuse.profiles.profile import Profile
from omnireuse.profiles.target import Target
from omnireuse.summary.tuning import BEGINS, Tuning
from omnireuse.tuning.budget import JUDGED, Budget, budget_for
from omnireuse.tuning.configuration import Configuration
from omnireuse.tuning.entry import Shared, TuningEntry
from omnireuse.tuning.own_work import WaitingError, state_after
from omnireuse.tuning.store import Measured

__all__ = ["PlanRegistry"]

logger = logging.getLogger("omnireuse")

MOST_UNFINISHED = 3
"""Configurations measured in part, from which on a new one is measured from its second picture on."""
MOST_BUDGETS = 2
"""Numbers of computed steps for one configuration, from which on a new one is measured from its second picture on."""


_Known: TypeAlias = "tuple[Profile | None, Measured, str]"
"""Plans, what earlier processes have measured, and how plans for other arguments differ."""


_open: weakref.WeakSet[PlanRegistry] = weakref.WeakSet()


def _before_fork() -> None:
    for registry in list(_open):
        registry.before_fork()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork)


@dataclass(eq=False, kw_only=True)
class PlanRegistry(Shared):
    """The entries of one process. A host finds the entry of each run here, and hands it what it has measured."""

    _seen: set[str] = field(default_factory=set)
    _said: Once = field(default_factory=Once)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        _open.add(self)

    def known(
        self, policy: Policy, start: RunStart, configuration: Callable[[], Configuration], target: Target | None = None
    ) -> tuple[Configuration, Budget]:
        """What a run under the untuned default belongs to, for `find`. An error on one rank is one on all.

        Args:
            configuration: of the run.
            target: of the untuned default.

        Raises:
            NotTunableError: the run belongs to nothing.
            StateError: another rank has met an error.
        """

        def make() -> tuple[Configuration, Budget]:
            with self.own_work():
                budget, found = budget_for(policy, start, target or Target()), configuration()
            if found.conditions.weights is None:
                raise NotTunableError("weights cannot be told apart, because they are sharded or not in memory")
            return found, budget

        return self.agreement.of_each(make)

    def find(self, configuration: Configuration, budget: Budget) -> TuningEntry:
        """The entry of a run: "ready" with a plan of the store; else "measuring".

        It is "off" for this picture as long as another pipeline or process measures; if the ledger does not allow
        more; and if a user seems to change an argument with every picture: for the first picture of a configuration
        beside `MOST_UNFINISHED` that are measured in part, or of a number of computed steps beside `MOST_BUDGETS`.
        """
        if budget.aim:
            aim = {budget.aim.name: repr(budget.aim.value), "judged": repr(JUDGED)}
            configuration = msgspec.structs.replace(configuration, call={**configuration.call, **aim})
        key = (configuration.digest, len(budget.steps))
        with self.lock:
            entry = self.entries.get(key) or self._new(key, configuration, budget)
            entry.budget, entry.last = budget, next(self._numbers)
        if entry.is_due and not entry.may_compute_all:
            return self._passed_by(entry, WaitingError(f"{budget.waits}; it is measured once reuse has saved enough"))
        return entry

    def close(self) -> None:
        """Drop what was measured, and let other processes measure."""
        with self.lock:
            for entry in self.entries.values():
                entry.drop()
                entry.release()

    def before_fork(self) -> None:
        """Let this process and its child compete for what is measured; the disk has what was measured so far."""
        for entry in [each for each in self.entries.values() if each.lock is not None]:
            entry.release()
            self.entries = {key: each for key, each in self.entries.items() if each is not entry}

    def forget(self) -> None:
        """Close, and find each entry anew."""
        with self.lock:
            self.close()
            self.entries.clear()

    def _new(self, key: tuple[str, int], configuration: Configuration, budget: Budget) -> TuningEntry:
        tuning = Tuning(
            state="measuring",
            wanted=max(self.pictures, JUDGED) if budget.aim else self.pictures,
            computes_all=budget.aim.quality is not None,
            reason=BEGINS,
            is_sure=budget.reuses and not budget.aim,
        )
        entry = TuningEntry(shared=self, configuration=configuration, budget=budget, tuning=tuning)
        entry.calls_a_step = self.ledger.calls_a_step
        try:
            known, measured, near = self.agreement.of_first(lambda: self.own_work.of(self._kept, entry))
        except OmniReuseError as error:
            entry.release()
            return self._passed_by(entry, error)
        plan = None if known is None else budget.plan_of(known.plans)
        if known is not None and plan is not None:
            entry.take(known, plan, str(self.store.file(configuration.digest)))
        else:
            entry.earlier, entry.budgets = measured.calls, frozenset({*measured.budgets, len(budget.steps)})
            entry.tried = dict(measured.tried)
            entry.tuning = replace(tuning, near=near)
            entry.note()
        self.entries[key] = entry
        return entry

    def _passed_by(self, entry: TuningEntry, error: OmniReuseError) -> TuningEntry:
        """The untuned default for one picture; the next picture of the configuration looks again."""
        why, state = str(error), state_after(error)
        passed = replace(entry, tuning=replace(entry.tuning, state=state, reason=why), calls=[], search=None, lock=None)
        if self._said.is_new((entry.configuration.digest, len(entry.budget.steps), why)):
            logger.info("%s", passed.tuning)
        return passed

    def _kept(self, entry: TuningEntry) -> _Known:
        """What the store has for an entry. Its lock is taken if it has no plan.

        Raises:
            WaitingError: it is not measured now.
        """
        digest, count, store = entry.configuration.digest, len(entry.budget.steps), self.store
        known = store.load(digest)
        if known is not None and entry.budget.plan_of(known.plans) is not None:
            return known, Measured(), ""
        entry.lock = store.lock(digest)
        if entry.lock is None:
            raise WaitingError("another pipeline or process measures it, and its plan serves here once it is kept")
        near = store.near(entry.configuration)
        if self.measures_all:
            return None, Measured(), near
        measured = store.measured(digest)
        budgets = measured.budgets
        begun = {file.stem for file in store.unfinished()}
        if digest not in self._seen and digest not in begun and known is None:
            begun_here = [each for each in self.entries.values() if each.tuning.state == "measuring" and each.calls]
            if len({each.configuration.digest for each in begun_here} | begun) >= MOST_UNFINISHED:
                self._seen.add(digest)
                store.keep_measured(entry.configuration, Measured(budgets=budgets))
                others = f"{MOST_UNFINISHED} other configurations are measured in part"
                raise WaitingError(f"{others}; this one is measured from its second picture on")
        if count not in budgets and len(budgets) >= MOST_BUDGETS:
            budgets = tuple(sorted({*budgets, count}))
            store.keep_measured(entry.configuration, msgspec.structs.replace(measured, budgets=budgets))
            others = f"{MOST_BUDGETS} other numbers of computed steps were asked for"
            raise WaitingError(f"{others}; this one is measured from its second picture on")
        return None, measured, near
