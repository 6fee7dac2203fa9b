"""What follows from the rows of `bench guard`: an oracle, how errors rank pictures, and what rules gain.

A quantile of 5 % is meant wherever a floor is named. "At equal steps" compares with the plans of neighbouring numbers
of steps, interpolated at the mean number that a rule computes.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DRAWS, DRAWN = 200, 3
"""How often other pictures are drawn to compare errors with, and how many: as many as tuning measures."""
CHANGED = {
    ("change", 14): (12, 14, 16),
    ("change", 9): (8, 9, 10),
    ("restart", 14): (13, 13, 16),
    ("restart", 9): (8, 8, 11),
}
"""Computed steps of the plans for easy, usual and hard pictures."""
GOAL = 3.0
"""dB by which the floor shall rise."""

Row = dict[str, Any]
Array = NDArray[np.float64]


def floor(values: Array) -> float:
    """The 5 % quantile."""
    return float(np.quantile(values, 0.05))


def ranked(one: Array, other: Array) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def signal(row: Row, after: int, kind: str) -> Array | None:
    """What the errors of the first computed steps say of each picture; None where no error is known yet.

    Args:
        after: how many steps have computed.
        kind: "last", the logarithm of the last error, or "mean", that of the logarithms so far.
    """
    if after < 2:
        return None
    logs = np.log(np.maximum(np.array([each[1:after] for each in row["errors"]], dtype=float), 1e-9))
    return logs[:, -1] if kind == "last" else logs.mean(1)


class Part:
    """One pipeline with or without guidance."""

    def __init__(self, rows: Sequence[Row]) -> None:
        first = rows[0]
        self.case: str = first["case"]
        self.name = f"{first['case']}, {'guided' if first['guided'] else 'unguided'}"
        self.plans = {row["budget"]: row for row in rows if row["kind"] == "plan"}
        self.psnr = {budget: np.array(row["psnr"]) for budget, row in self.plans.items()}
        self.switched = {(row["kind"], row["budget"], row["after"]): row for row in rows if row["kind"] != "plan"}
        self.budgets = sorted({row["budget"] for row in rows if row["kind"] != "plan"}, reverse=True)

    def leading(self, budget: int) -> int:
        """How many steps compute before the first that does not."""
        return int(next(place for place, step in enumerate(self.plans[budget]["steps"]) if step != place))

    def at_equal_steps(self, steps: float, figure: Callable[[Array], float], places: Array) -> float:
        """A figure of these pictures under the plans of as many steps, at most 18."""
        counts = sorted(self.psnr)
        place = min(max(bisect_right(counts, steps), 1), len(counts) - 1)
        counts = counts[place - 1 : place + 1]
        return float(np.interp(steps, counts, [figure(self.psnr[count][places]) for count in counts]))


def oracle(costs: Sequence[int], known: Array, psnr: Array, mean: float) -> tuple[float, float] | None:
    """The floor and the mean where each picture gets the cheapest plan that reaches the highest common PSNR which costs
    no more than so many steps on average; None where nothing costs so little.

    Args:
        costs: computed steps of each plan, rising.
        known: (plans, pictures): what the oracle takes for the PSNR.
        psnr: as it is.
    """
    best = None
    for least in np.unique(known):
        reach = known >= least
        if not reach.any(0).all():
            break
        chosen = reach.argmax(0)
        if np.mean(np.array(costs)[chosen]) <= mean:
            got = psnr[chosen, np.arange(psnr.shape[1])]
            best = floor(got), float(got.mean())
    return best


def rank_needed(spread: float) -> float | None:
    """The correlation of signal and PSNR at which steps can be shared out such that the floor rises by `GOAL` and the
    mean stays, if PSNR is normal and falls by as much with a step less as it rises with one more: the spread that the
    signal does not explain is √(1 − ρ²) of it. None where no signal is good enough."""
    left = 1 + GOAL / (spread * statistics.NormalDist().inv_cdf(0.05))
    return None if left < 0 else math.sqrt(1 - left**2)


def steps_for_floor(part: Part, budget: int) -> float:
    """Mean steps at which an oracle keeps the floor of the plan of so many steps."""
    costs = sorted(part.psnr)
    reach = np.stack([part.psnr[cost] for cost in costs]) >= floor(part.psnr[budget])
    reach[-1] = True
    return float(np.mean(np.array(costs)[reach.argmax(0)]))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What happens to pictures whose error at a decision is above, or below, that of three others.

    Attributes:
        kind: "switch": the plan of more steps follows above all three, that of fewer below all three. "change": the
            same with plans that differ less, and the run goes back to the first step at which they differ. "restart":
            above all three it goes back so; all begin with a plan of one step less.
        later: computed steps after the last one before the first gap at which it is decided.
        signal: as `signal`.
    """

    kind: str
    later: int
    signal: str

    def plans(self, part: Part, budget: int) -> tuple[list[tuple[Array, int]], Array] | None:
        """PSNR and cost of an easy, a usual and a hard picture, and what tells them apart; None without that."""
        if self.kind == "switch":
            after = part.leading(budget) + self.later
            found, base = signal(part.plans[budget], after, self.signal), part.plans[budget]
            rows = [part.switched["fewer", budget, after], base, part.switched["more", budget, after]]
            return None if found is None else ([(np.array(row["psnr"]), len(row["steps"])) for row in rows], found)
        fewer, begun, more = CHANGED[self.kind, budget]
        found = signal(part.plans[begun], part.leading(begun) + self.later, self.signal)
        plans = [(part.psnr[count], self._cost(part, begun, count)) for count in (fewer, begun, more)]
        return None if found is None else (plans, found)

    def _cost(self, part: Part, begun: int, then: int) -> int:
        """Computed steps of a run that goes over to another plan, with those that it drops."""
        steps, others = part.plans[begun]["steps"], part.plans[then]["steps"]
        apart = min(set(steps) ^ set(others), default=len(steps))
        return then + sum(apart <= step for step in steps[: part.leading(begun) + self.later] if begun != then)

    def gain(self, part: Part, budget: int, tells: str = "errors") -> Row | None:
        """Gains in dB at equal steps over many draws of three; None where there is nothing to decide by.

        Args:
            tells: "errors"; "others'", which gives each picture the error of another one and shows what the plans alone
                do; or "hardness", the PSNR of each picture on average over all plans, which no run knows.
        """
        known = self.plans(part, budget)
        if known is None:
            return None
        plans, found = known
        if tells == "hardness":
            found = -np.mean(list(part.psnr.values()), axis=0)
        psnr, costs = np.stack([each for each, _ in plans]), np.array([cost for _, cost in plans])
        generator, gains = np.random.default_rng(0), []
        for _ in range(DRAWS):
            order = generator.permutation(len(found))
            drawn, others = order[:DRAWN], order[DRAWN:]
            seen = generator.permutation(found) if tells == "others'" else found
            level = 1 + (seen[others] > seen[drawn].max()) - (seen[others] < seen[drawn].min()).astype(int)
            got, steps = psnr[level, others], float(costs[level].mean())
            mean = part.at_equal_steps(steps, lambda values: float(values.mean()), others)
            least = part.at_equal_steps(steps, floor, others)
            gains.append((floor(got) - least, float(got.mean()) - mean, steps))
        names = ("floor", "mean", "steps")
        return dict(zip(names, (round(float(value), 2) for value in np.mean(gains, axis=0)), strict=True))


RULES = [
    *(Rule(kind="switch", later=later, signal=kind) for later in (0, 2) for kind in ("last", "mean")),
    *(Rule(kind="change", later=later, signal=kind) for later in (0, 2) for kind in ("last", "mean")),
    *(Rule(kind="restart", later=later, signal=kind) for later in (0, 1, 2) for kind in ("last", "mean")),
]


def parts_of(rows: Sequence[Row]) -> list[Part]:
    """The parts whose rows are whole."""
    found: dict[tuple[str, bool], list[Row]] = {}
    for row in rows:
        found.setdefault((row["case"], row["guided"]), []).append(row)
    return [Part(own) for own in found.values() if len(own) == max(map(len, found.values()))]


def conclude(rows: Sequence[Row], controlled: Sequence[Row]) -> Row:
    """For each part and budget what is there to win, what is known when, and the gains of each rule; the gain of the
    rule that is best on the other models; and the means.

    Args:
        rows: of `bench guard`.
        controlled: of `bench tolerance`.
    """
    parts = parts_of(rows)
    cases = [_case(part, budget) for part in parts for budget in part.budgets]
    names = [f"{rule.kind}, {rule.later} later, {rule.signal}" for rule in RULES]
    for case in cases:
        others = [each for each in cases if each["model"] != case["model"]]
        if others:
            best = max(names, key=lambda name: _mean(each["rules"][name] for each in others))
            case["left out"] = {"rule": best, "gain": case["rules"][best]}
    means = {
        name: {
            "gain": _mean(case["rules"][name] for case in cases),
            "mean": _mean((case["rules"][name] for case in cases), "mean"),
            "by others'": _mean(case["rules by others'"][name] for case in cases),
            "by hardness": _mean(case["rules by hardness"][name] for case in cases),
            "cases of 1.5 dB": sum((case["rules"][name] or {"floor": 0.0})["floor"] >= 1.5 for case in cases),
        }
        for name in names
    }
    left = [case["left out"]["gain"] for case in cases if "left out" in case]
    oracles = {
        name: _rounded(statistics.fmean(case[name] - case["floor"] for case in cases if case[name] is not None))
        for name in ("oracle", "hardness")
        if cases
    }
    left_out = {"floor": _mean(left), "mean": _mean(left, "mean")}
    return {
        "cases": cases,
        "rules": means,
        "left out": left_out,
        "oracles": oracles,
        "error control": of_error_control(controlled),
    }


def of_error_control(rows: Sequence[Row]) -> Row:
    """What `ErrorControl` gains in the 95 % quantile and in the mean of the errors of the final latents, in dB, over
    fixed numbers of as many steps, and how their standard deviations differ, over all settings of up to 20 steps
    between two fixed numbers that were measured."""
    figures: tuple[Callable[[Array], Any], ...] = (lambda errors: np.quantile(errors, 0.95), np.mean, np.std)
    gains = []
    for key in dict.fromkeys((row["case"], row["run"], row["guided"]) for row in rows):
        own = [row for row in rows if (row["case"], row["run"], row["guided"]) == key]
        fixed = {row["setting"]: _decibels(row) for row in own if row["method"] == "fixed"}
        counts = np.array(sorted(fixed))
        for row in own:
            if row["method"] == "untuned" and counts[0] <= row["computed"] <= min(counts[-1], 20):
                place, errors = np.log(row["computed"]), _decibels(row)
                known = [[figure(fixed[count]) for count in counts] for figure in figures]
                pairs = zip(known, figures, strict=True)
                gains.append([np.interp(place, np.log(counts), each) - figure(errors) for each, figure in pairs])
    quantile, mean, spread = np.mean(gains or np.zeros((1, 3)), axis=0)
    better = sum(bool(each[0] > 0) for each in gains)
    found = {"quantile": quantile, "mean": mean, "spread": spread, "settings": len(gains), "better": better}
    return {name: _rounded(value) for name, value in found.items()}


def _decibels(row: Row) -> Array:
    return 20 * np.log10(np.maximum(row["errors"], 1e-6))


def _mean(gains: Any, name: str = "floor") -> float:
    """Where a rule cannot decide, it changes nothing."""
    each = [gain[name] if gain else 0.0 for gain in gains]
    return round(statistics.fmean(each), 2) if each else 0.0


def _case(part: Part, budget: int) -> Row:
    plan, psnr = part.plans[budget], part.psnr[budget]
    leading, costs = part.leading(budget), sorted(part.psnr)
    every = np.stack([part.psnr[cost] for cost in costs])
    average = every.mean(1, keepdims=True) + every.mean(0) - every.mean()
    best, fair = oracle(costs, every, every, budget), oracle(costs, average, every, budget)
    row: Row = {"part": part.name, "model": part.case, "budget": budget, "leading": leading}
    row |= {"mean": psnr.mean(), "floor": floor(psnr), "spread": psnr.std()}
    row |= {"rank needed": rank_needed(float(psnr.std()))}
    row |= {"oracle": None if best is None else best[0], "oracle's mean": None if best is None else best[1]}
    row |= {"hardness": None if fair is None else fair[0], "hardness' mean": None if fair is None else fair[1]}
    row |= {"steps for the same floor": steps_for_floor(part, budget)}
    for name, after in (("before", leading), ("later", leading + 2), ("end", budget)):
        found = {kind: signal(plan, after, kind) for kind in ("last", "mean")}
        row[f"rank {name}"] = {kind: None if each is None else -ranked(each, psnr) for kind, each in found.items()}
    later = part.switched["all", budget, leading + 2]
    row |= {"all later": np.mean(later["psnr"]), "floor of all later": floor(np.array(later["psnr"]))}
    row |= {"steps of all later": len(later["steps"])}
    row = {name: _rounded(value) for name, value in row.items()}
    names = [(rule, f"{rule.kind}, {rule.later} later, {rule.signal}") for rule in RULES]
    row["rules"] = {name: rule.gain(part, budget) for rule, name in names}
    for tells in ("others'", "hardness"):
        row[f"rules by {tells}"] = {name: rule.gain(part, budget, tells) for rule, name in names}
    return row


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return round(float(value), 2) if isinstance(value, (float, np.floating)) else value
