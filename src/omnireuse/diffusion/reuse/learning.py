"""Learning where to compute from the runs that users make anyway.

Each computed step shows how far the forecast of x0 over the gap before it was off. Every step in the gap gets that
error, divided by the gap's width in noise to the power `GROWTH_IN_GAP`, as its difficulty, averaged over runs. The
schedule near the default's with the least sum of squared errors that these difficulties predict is the cheapest path
over the gaps.

Source: schedules as cheapest paths, as in LeMiCa, arXiv 2511.00090, whose errors come from full runs.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from omnireuse.diffusion.reuse.events import Decision
from omnireuse.diffusion.reuse.generation import Emit
from omnireuse.diffusion.reuse.learned import Learned
from omnireuse.diffusion.reuse.noise import NoiseLevel
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.reuse.policies.spread import FEW, cheapest_path
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["Guidance", "Kind", "Learner", "Lesson", "guidance_of"]

Guidance = tuple[tuple[str, str], ...]
"""What guides in a call of a pipeline: names and values, as text."""

logger = logging.getLogger("omnireuse")

GROWTH_IN_GAP = 1.25
"""Power of the distance in noise with which the error of a forecast grows."""
GROWTH_TO_END = 1.0
"""An error at the share of noise s counts exp(s) times in the final latents."""
REACH, REACH_OF_FEW = 2, 1
"""How many steps a computed step may be from where the default has it; the second where fewer than 0.4 compute."""
LEAST_GAIN = 2.0
"""dB that a new schedule must promise over the present one; below half of it over the default's, the default's returns.
Less than half of what is promised comes true. All: ``python -m bench learn``."""
FIRST_PLAN, LONGEST_WAIT, MEMORY = 4, 32, 64
"""Plans are made after 4, 8, 16 and 32 runs and after each further 32; averages are over about the last 64."""
MOST_KINDS = 64
"""Kinds of runs that are remembered; beyond, the one that was not seen for longest is forgotten."""
SMALLEST_ERROR = 1e-6


@dataclass(eq=False)
class Kind:
    """Runs of the same noise levels, scheduler and guidance, and what they have shown.

    Attributes:
        scheduler: class of the scheduler.
        guidance: what the pipeline was called with that guides.
        noises: share of noise at each step, falling.
        weights: x0 is off by so much where the output is off by 1.
        effects: the final latents are off by so much where x0 is off by 1 at each step.
        default: the steps that the default computes.
        schedule: the steps that the next run computes.
        difficulty: of each step; logarithms.
        seen: how many runs have shown it.
        runs: complete runs.
        changes: how often the schedule has changed.
        gain: as of `Learned`.
    """

    scheduler: str
    guidance: Guidance
    noises: tuple[float, ...]
    weights: np.ndarray[Any, np.dtype[np.float64]]
    effects: np.ndarray[Any, np.dtype[np.float64]]
    default: tuple[int, ...]
    schedule: tuple[int, ...]
    difficulty: np.ndarray[Any, np.dtype[np.float64]]
    seen: np.ndarray[Any, np.dtype[np.int64]]
    runs: int = 0
    changes: int = 0
    gain: float = 0.0

    @classmethod
    def of(cls, levels: Sequence[NoiseLevel], default: frozenset[int], scheduler: str, guidance: Guidance) -> Kind:
        """Runs of which nothing is known yet."""
        noises = np.array([level.coordinate for level in levels])
        moved = noises - np.append(noises[1:], 0.0)
        steps = tuple(sorted(default))
        return cls(
            scheduler=scheduler,
            guidance=guidance,
            noises=tuple(noises.tolist()),
            weights=np.array([abs(level.output_weight or 0.0) for level in levels]),
            effects=moved / noises.clip(1e-6) * np.exp(GROWTH_TO_END * noises),
            default=steps,
            schedule=steps,
            difficulty=np.zeros(len(levels)),
            seen=np.zeros(len(levels), dtype=np.int64),
        )

    def learn(self, errors: Mapping[int, float]) -> None:
        """Learn from a complete run.

        Args:
            errors: of the forecast for each computed step, in order; NaN where it is not known.
        """
        self.runs += 1
        for (before, _), (step, error) in pairwise(errors.items()):
            if not math.isfinite(error):
                continue
            width = self.noises[before] - self.noises[step]
            error = max(error * self.weights[step], SMALLEST_ERROR)
            found = math.log(error) - GROWTH_IN_GAP * math.log(width)
            steps = slice(before + 1, step + 1)
            self.seen[steps] += 1
            self.difficulty[steps] += (found - self.difficulty[steps]) / self.seen[steps].clip(max=MEMORY)
        wait = min(FIRST_PLAN << max((self.runs // FIRST_PLAN).bit_length() - 1, 0), LONGEST_WAIT)
        last = self.default[-1]
        if self.runs % wait == 0 and self.seen[1 : last + 1].all():
            self._plan(last)

    def _plan(self, last: int) -> None:
        """Take the schedule with the least expected error where that gains enough, and go back to the default where its
        own runs have shown that it does not. The last computed step stays: nothing shows the errors behind it."""
        noises = np.array(self.noises[: last + 1])
        widths = np.append(0.0, -np.diff(noises))
        sums = np.cumsum(widths * self.difficulty[: last + 1])
        distances = (noises[:, None] - noises[None, :]).clip(0.0)
        is_gap = distances > 0
        difficulty = np.exp((sums[None, :] - sums[:, None]) / np.where(is_gap, distances, np.inf))
        # What the steps after the first node and before the second leave.
        left = np.cumsum(self.effects[: last + 1] * distances**GROWTH_IN_GAP, axis=1)
        before = np.concatenate([np.zeros((last + 1, 1)), left[:, :-1]], axis=1)
        costs = np.where(is_gap, np.square(before * difficulty), np.inf)
        reach = REACH if len(self.default) >= FEW * len(self.noises) else REACH_OF_FEW
        best = tuple(cheapest_path(costs, len(self.default) - 1, near=self.default, reach=reach))

        def expected(steps: tuple[int, ...]) -> float:
            return float(sum(costs[pair] for pair in pairwise(steps)))

        steps = self.schedule
        if _decibels(expected(steps), expected(best)) >= LEAST_GAIN:
            steps = best
        elif _decibels(expected(self.default), expected(steps)) < LEAST_GAIN / 2:
            steps = self.default
        if steps != self.schedule:
            self.schedule, self.changes = steps, self.changes + 1
            logger.info("after %d runs the schedule of learnt runs changes to %s", self.runs, steps)
        self.gain = _decibels(expected(self.default), expected(self.schedule))


class Learner:
    """Learns from the runs of one pipeline, in any threads. Runs of each kind are planned from their own errors.

    Args:
        fell_back: told what a run goes on with from which nothing can be learnt.
    """

    def __init__(self, fell_back: Callable[[str], None]) -> None:
        self._fell_back = fell_back
        self._lock = threading.Lock()
        self._kinds: dict[tuple[Any, ...], Kind] = {}
        self._refused: set[str] = set()
        self.is_frozen = False
        self.latest: Kind | None = None
        """That of the latest complete run."""

    def begin(
        self, strategy: Strategy, levels: Sequence[NoiseLevel], scheduler: str, guidance: Guidance
    ) -> Lesson | None:
        """The lesson of a run that begins; None where nothing can be learnt from it."""
        is_known = all(level.sample_weight is not None for level in levels)
        if not levels or not is_known or any(a.coordinate <= b.coordinate for a, b in pairwise(levels)):
            if scheduler not in self._refused:
                self._refused.add(scheduler)
                logger.warning(
                    "nothing is learnt from runs with %s: their noise is not known, or does not fall from step to "
                    "step; they follow the default's schedule",
                    scheduler or "no scheduler",
                )
            self._fell_back("the default's schedule")
            return None
        noises = tuple(level.coordinate for level in levels)
        default = strategy.policy.schedule(len(levels), noises)
        if default is None or len(default) in (1, len(levels)):
            return None
        key = (scheduler, guidance, tuple(round(noise, 4) for noise in noises))
        with self._lock:
            kind = self._kinds.pop(key, None) or Kind.of(levels, default, scheduler, guidance)
            self._kinds[key] = kind
            if len(self._kinds) > MOST_KINDS:
                forgotten = self._kinds.pop(next(iter(self._kinds)))
                logger.warning(
                    "what %d runs of %d steps have shown is forgotten", forgotten.runs, len(forgotten.noises)
                )
            if kind.schedule != kind.default:
                policy = FixedSchedule(steps=kind.schedule, compute_last=False)
                strategy = replace(strategy, policy=policy)
        return Lesson(self, kind, strategy)

    def end(self, kind: Kind, errors: Mapping[int, float]) -> None:
        """A run is complete."""
        with self._lock:
            self.latest = kind
            if not self.is_frozen:
                kind.learn(errors)

    def freeze(self, scheduler: str) -> Kind | None:
        """End learning; return the kind of the latest complete run. None where that had another scheduler or there is
        none, and learning goes on."""
        with self._lock:
            if self.latest is None or self.latest.scheduler != scheduler:
                return None
            self.is_frozen = True
            return self.latest

    def learned(self) -> Learned | None:
        """What runs of the latest kind have shown; None before the first."""
        with self._lock:
            kind = self.latest
            if kind is None:
                return None
            return Learned(
                runs=kind.runs,
                schedule=kind.schedule,
                changes=kind.changes,
                gain=kind.gain,
                kinds=len(self._kinds),
                is_frozen=self.is_frozen,
            )


@dataclass(eq=False)
class Lesson:
    """One run of a kind: its strategy, and what it shows."""

    learner: Learner
    kind: Kind
    strategy: Strategy
    _errors: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def heard_by(self, emit: Emit) -> Emit:
        """`emit`, with the lesson listening."""

        def heard(decision: Decision) -> None:
            if not decision.reused:
                self._errors[decision.step].append(math.nan if decision.error is None else decision.error)
            emit(decision)

        return heard

    def end(self) -> None:
        """All steps of the run are done. Not called for an interrupted run, which shows nothing."""
        self.learner.end(self.kind, {step: sum(each) / len(each) for step, each in sorted(self._errors.items())})


def guidance_of(pipeline: Any, call: Mapping[str, Any]) -> Guidance:
    """Scales and their like in a call of a pipeline, whether there is a negative prompt, and the guider."""
    found = [
        (name, repr(value))
        for name, value in sorted(call.items())
        if ("guidance" in name or "cfg" in name) and isinstance(value, (int, float, list, tuple, str))
    ]
    if any(call.get(name) is not None for name in ("negative_prompt", "negative_prompt_embeds")):
        found.append(("negative_prompt", "given"))
    if (guider := getattr(pipeline, "guider", None)) is not None:
        found.append(("guider", f"{type(guider).__name__}({getattr(guider, 'guidance_scale', '')})"))
    return tuple(found)


def _decibels(before: float, after: float) -> float:
    """By how much an error falls."""
    return 10 * math.log10(max(before, 1e-30) / max(after, 1e-30))
