"""The parts of a search: full runs, the best schedule for each budget, and its evaluation on held-out prompts."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from omnireuse.calibration.candidates import Candidates
from omnireuse.calibration.evaluator import Evaluator, trial_cost
from omnireuse.calibration.options import Options
from omnireuse.calibration.progress import Tracker
from omnireuse.calibration.runner import PipelineRunner
from omnireuse.planning.candidate import FITTED, Candidate, Scores
from omnireuse.profiles.conditions import Conditions
from omnireuse.profiles.measurements import Measurements
from omnireuse.profiles.origin import Origin
from omnireuse.profiles.profile import Plan, Profile

__all__ = ["Search"]

logger = logging.getLogger("omnireuse")


class Search:
    """One search. Call `run_in_full`, `find_best`, `evaluate` and `profile` in this order."""

    def __init__(self, options: Options, runner: PipelineRunner, track: Tracker) -> None:
        self._options, self._track = options, track
        places, batch_size = range(len(options.prompts)), options.batch_size
        self._searched = Evaluator(
            runner,
            track.spend,
            places[: options.for_search],
            batch_size=batch_size,
            trial_prompts=options.fit_prompts,
        )
        self._held_out = Evaluator(runner, track.spend, places[options.for_search :], batch_size=batch_size)
        self._best: dict[int, tuple[Candidate, Scores]] = {}
        self._evaluated: dict[Candidate, Scores] = {}
        self._complete = True

    def run_in_full(self) -> None:
        """Run every prompt in full, and measure.

        Raises:
            StateError: a full run is not finite.
        """
        done, total = 0, len(self._options.prompts)
        self._track("full runs", done, total)
        for count in chain(self._searched.run_in_full(record=True), self._held_out.run_in_full(record=False)):
            done += count
            self._track("full runs", done, total)
        self._measured = Measurements.of(self._searched.seen, self._held_out.seen)

    def find_best(self) -> None:
        """Search the best schedule for each budget. An interrupt keeps what was found, unless that is nothing."""
        options = self._options
        candidates = Candidates(self._searched.products, self._searched.coordinates, options.budgets)
        with self._keeping("the profile holds the best schedules found so far"):
            growths = candidates.to_settle_growth()
            likely = candidates.for_budgets(max(growths.values(), default=0.0))
            self._expect([*growths, *(each for each in likely if each not in growths)])
            self._try(list(growths))
            growth = growths[self._best[options.budgets[0]][0]] if growths else 0.0
            plans = [each for each in candidates.for_budgets(growth) if each not in growths]
            self._expect(plans)
            self._try(plans)

    def _expect(self, plans: Sequence[Candidate]) -> None:
        """Note the cost of these trials, and of the evaluation after them."""
        options = self._options
        trials = sum(trial_cost(each, options.steps) for each in plans)
        judged = sum(options.budgets)
        self._track.expect(self._searched.num_trial_prompts * trials + options.held_out * judged / options.steps)
        self._track("plans", len(plans), len(plans))

    def _try(self, candidates: Sequence[Candidate]) -> None:
        for done, (candidate, psnr) in enumerate(self._searched.tried(candidates), 1):
            budget = len(candidate.steps)
            if budget not in self._best or math.fsum(psnr) > math.fsum(self._best[budget][1]):
                self._best[budget] = candidate, psnr
            best = statistics.fmean(self._best[budget][1])
            self._track(f"{budget} of {self._options.steps} steps", done, len(candidates), best)

    def evaluate(self) -> None:
        """Score the best schedules on the held-out prompts. An interrupt keeps the scores so far."""
        found = [candidate for candidate, _ in self._best.values()]
        with self._keeping("a plan that was not judged on the held-out prompts promises nothing"):
            for candidate, scores in self._held_out.scores(found, self._searched.weights):
                self._evaluated[candidate] = scores
                self._track("held-out prompts", len(self._evaluated), len(self._best))

    def profile(self, conditions: Conditions, origin: Origin) -> Profile:
        """What was found."""
        options, weights = self._options, self._searched.weights
        return Profile.of(
            conditions,
            origin,
            command=options.command,
            num_inference_steps=options.steps,
            coordinates=self._searched.coordinates,
            call={name: repr(value) for name, value in options.call.items()},
            prompts_digest=options.prompts_digest,
            num_prompts=(options.for_search, options.held_out),
            seed=options.seed,
            cost_in_runs=round(self._track.runs, 1),
            complete=self._complete,
            measured=self._measured,
            plans={
                budget: Plan(
                    steps=candidate.steps,
                    forecaster=candidate.forecaster,
                    weights=weights[candidate].weights if candidate.forecaster == FITTED else (),
                    psnr=statistics.fmean(scores),
                    held_out=self._evaluated.get(candidate, ()),
                )
                for budget, (candidate, scores) in sorted(self._best.items())
                if candidate.forecaster != FITTED or candidate in weights
            },
        )

    @contextmanager
    def _keeping(self, what_is_left: str) -> Iterator[None]:
        """Go on after an interrupt with what was found."""
        try:
            yield
        except KeyboardInterrupt:
            if not self._best:
                raise
            self._complete = False
            logger.warning("interrupted: %s", what_is_left)
