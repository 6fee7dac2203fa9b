"""The parts of a search: full runs, the best schedule for each budget, and its evaluation on held-out prompts."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest

from omnireuse.calibration.candidates import LEAST_GAIN, Candidates
from omnireuse.calibration.evaluator import Evaluator, trial_cost
from omnireuse.calibration.options import Options
from omnireuse.calibration.progress import Tracker
from omnireuse.calibration.results import Results
from omnireuse.calibration.runs import Description, Runner
from omnireuse.planning.candidate import FITTED, Candidate, Scores
from omnireuse.profiles.measurements import Measurements
from omnireuse.profiles.profile import Plan, Profile

__all__ = ["Search"]

logger = logging.getLogger("omnireuse")


class Search:
    """One search. Call `run_in_full`, `find_best`, `evaluate` and `profile` in this order."""

    def __init__(self, options: Options, runner: Runner, results: Results, track: Tracker) -> None:
        self._options, self._results, self._track = options, results, track
        both = {"batch_size": options.batch_size, "steps": options.steps}
        places = range(len(options.prompts))
        self._searched = Evaluator(
            runner, results, "searched", places[: options.for_search], trial_prompts=options.fit_prompts, **both
        )
        self._held_out = Evaluator(runner, results, "held out", places[options.for_search :], **both)
        self._deadline = None if options.seconds is None else time.monotonic() + options.seconds
        self._best: dict[int, tuple[Candidate, Scores]] = {}
        self._evaluated: dict[Candidate, Scores] = {}
        self._more = ""
        self._complete = True

    def run_in_full(self) -> None:
        """Run every prompt in full, and measure.

        Raises:
            StateError: a full run is not finite.
        """
        done, total = 0, len(self._options.prompts)
        self._track("full runs", done, total)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._track("full runs", done, total)

        self._coordinates = self._searched.run_in_full(record=True, advance=advance)
        self._held_out.run_in_full(record=False, advance=advance)
        self._measured = Measurements.of(self._searched.seen, self._held_out.seen)

    def find_best(self) -> None:
        """Search the best schedule for each budget. An interrupt keeps what was found, unless that is nothing."""
        options = self._options
        candidates = Candidates(self._searched.products, self._coordinates, options.budgets)
        with self._keeping("the profile holds the best schedules found so far"):
            growths = candidates.to_settle_growth()
            self._expect(candidates, list(growths), max(growths.values(), default=0.0))
            self._try(list(growths))
            growth = growths[self._best[options.budgets[0]][0]] if growths else 0.0
            plans = self._expect(candidates, list(growths), growth)
            self._try(plans)

    def _expect(self, candidates: Candidates, first: Sequence[Candidate], growth: float) -> list[Candidate]:
        """What is tried after `first` if that is the growth; the best plans before the others. Notes what it costs."""
        options = self._options
        found, most = candidates.for_budgets(growth), options.evaluations
        self._more = _what_more_brings([gain for those in found.values() for gain in list(those.values())[most:]])
        by_place = zip_longest(*(list(those)[:most] for those in found.values()))
        plans = [each for place in by_place for each in place if each is not None and each not in first]
        trials = sum(trial_cost(each, options.steps) for each in (*first, *plans) if not self._searched.knows(each))
        judged = sum(budget for budget, those in found.items() if not any(map(self._held_out.knows, those)))
        runs = self._searched.num_trial_prompts * trials + options.held_out * judged / options.steps
        self._track.expect(runs)
        self._track("plans", len(plans), len(plans))
        return plans

    def _try(self, candidates: Sequence[Candidate]) -> None:
        options = self._options
        with closing(self._searched.tried(candidates)) as results:
            for done, (candidate, psnr) in enumerate(results, 1):
                budget = len(candidate.steps)
                if budget not in self._best or math.fsum(psnr) > math.fsum(self._best[budget][1]):
                    self._best[budget] = candidate, psnr
                doing, best = f"{budget} of {options.steps} steps", statistics.fmean(self._best[budget][1])
                self._track(doing, done, len(candidates), best)
                if self._deadline is not None and time.monotonic() > self._deadline:
                    break

    def evaluate(self) -> None:
        """Score the best schedules on the held-out prompts. An interrupt keeps the scores so far."""
        found = [candidate for candidate, _ in self._best.values()]
        with self._keeping("a plan that was not judged on the held-out prompts promises nothing"):
            for candidate, scores in self._held_out.scores(found, self._searched.weights):
                self._evaluated[candidate] = scores
                self._track("held-out prompts", len(self._evaluated), len(self._best))
            self._track("held-out prompts", len(found), len(found), note=self._more)
            logger.info("calibrate: %s", self._more)

    def profile(self, pipeline: Description) -> Profile:
        """What was found."""
        options, weights = self._options, self._searched.weights
        return Profile.of(
            pipeline.conditions,
            pipeline.origin,
            command=options.command,
            num_inference_steps=options.steps,
            coordinates=self._coordinates,
            call={name: repr(value) for name, value in options.call.items()},
            prompts_digest=options.prompts_digest,
            num_prompts=(options.for_search, options.held_out),
            seed=options.seed,
            cost_in_runs=round(self._results.runs, 1),
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


def _what_more_brings(gains: Sequence[float]) -> str:
    if not gains:
        return f"no further schedule promises {LEAST_GAIN:g} dB"
    return (
        f"{len(gains)} more schedules promise up to {max(gains):.1f} dB for a budget; for them, give more evaluations"
    )
