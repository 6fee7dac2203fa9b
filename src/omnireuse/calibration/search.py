"""The parts of a search: full runs, the best schedule for each budget, and its quality on held-out prompts."""

from __future__ import annotations

import dataclasses
import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from omnireuse.calibration.runner import PipelineRunner, RunInFull
from omnireuse.planning.path import OutputProducts
from omnireuse.planning.planner import Planner
from omnireuse.policies.spread import Spread
from omnireuse.profiles.plan import Plan
from omnireuse.tuning.trials import MeasuredCall, Trial, finished

__all__ = ["Search"]

logger = logging.getLogger("omnireuse")

GROWTHS = (2.0, 0.0, 4.0)
"""How errors grow on their way to the final latents (`Planner`), which full runs do not show: trials for the smallest
budget decide, where growth counts most and runs cost least."""


class Search:
    """One search. Call `run_in_full`, `find_best` and `judge` in this order.

    Args:
        runner: of the pipeline and all prompts.
        for_search: how many of the prompts, from the first, are searched with; the others are held out.
        budgets: numbers of computed steps, in rising order.
        batch_size: prompts in a call.
        fit_prompts: how many prompts each schedule is tried on, rounded up to whole calls.
        spend: told what is done, in words, and its cost in full runs of one prompt.

    Attributes:
        searched, held_out: the full runs, one for each call.
        plans: the best so far for each budget.
        complete: False after an interrupt.
        most_runs: the cost of the whole at most.
    """

    def __init__(
        self,
        runner: PipelineRunner,
        *,
        for_search: int,
        budgets: Sequence[int],
        batch_size: int,
        fit_prompts: int,
        spend: Callable[[str, float], None],
    ) -> None:
        self._runner, self._budgets, self._spend = runner, budgets, spend
        places = range(len(runner.prompts))
        self._for_search = _batches(places[:for_search], batch_size)
        self._unseen = _batches(places[for_search:], batch_size)
        self._tried = -(-min(fit_prompts, for_search) // batch_size)
        """Calls that schedules are tried on."""
        self._calls = list[MeasuredCall]()
        self._products = list[OutputProducts]()
        self.searched, self.held_out = list[RunInFull](), list[RunInFull]()
        self.plans: dict[int, Plan] = {}
        self._psnr: dict[int, float] = {}
        self.complete = True
        trials = sum(budgets) + (len(GROWTHS) - 1) * budgets[0]
        tried, unseen = sum(map(len, self._for_search[: self._tried])), sum(map(len, self._unseen))
        self.most_runs = len(places) + (trials * tried + sum(budgets) * unseen) / runner.steps

    def run_in_full(self) -> None:
        """Run every prompt in full.

        Raises:
            StateError: a full run is not finite.
        """
        for batch in self._for_search:
            run = self._runner.full_run(batch, record=True)
            if run.full is not None:
                self._products.append(run.full.products)
                if len(self.searched) < self._tried:
                    self._calls.append(MeasuredCall(replay=batch, full=run.full))
            self.searched.append(dataclasses.replace(run, full=None))
            self._spend("full runs", len(batch))
        for batch in self._unseen:
            self.held_out.append(self._runner.full_run(batch))
            self._spend("full runs", len(batch))

    def find_best(self) -> None:
        """Search the best schedule for each budget: the default's where no weights can be fitted. An interrupt keeps
        what was found, unless that is nothing."""
        total, noises = self._runner.steps, self.searched[0].coordinates
        if len(self._products) < len(self._for_search):
            for budget in self._budgets:
                steps = tuple(sorted(Spread(num_computed=budget).schedule(total, noises)))
                self.plans[budget] = Plan(steps=steps, forecaster="blend", psnr=None, held_out=())
            return
        products = OutputProducts.joined(self._products)
        planners = {each: Planner(products, noises, fewest=self._budgets[0], growth=each) for each in GROWTHS}
        growths: Sequence[float] = GROWTHS
        with self._keeping("the profile holds the best schedules found so far"):
            for budget in self._budgets:
                tried: dict[tuple[int, ...], float] = {}
                for growth in growths:
                    tried.setdefault(planners[growth].best(budget), growth)
                for steps in tried:
                    self._try(steps)
                growths = (tried[self.plans[budget].steps],)

    def _try(self, steps: tuple[int, ...]) -> None:
        """Fit the weights of a schedule, and keep it where it is the best of its budget."""
        budget, total = len(steps), self._runner.steps
        trial = Trial.of_fit(steps, total)
        finished(trial.lead(self._calls, self._runner, [run.pictures for run in self.searched]))
        psnr = statistics.fmean(trial.closeness)
        best = self._psnr.get(budget)
        if best is None or psnr > best:
            self._psnr[budget] = psnr
            self.plans[budget] = replace(trial.plan(closeness=tuple(trial.closeness)), psnr=psnr)
        cost = len(trial.closeness) * trial.cost(self._calls)
        self._spend(f"{budget} of {total} steps, best {self._psnr[budget]:.1f} dB", cost)

    def judge(self) -> None:
        """Score the best schedules on the held-out prompts. An interrupt keeps the scores so far."""
        noises, total = self.searched[0].coordinates, self._runner.steps
        with self._keeping("a plan that was not judged on the held-out prompts promises nothing"):
            for budget, plan in list(self.plans.items()):
                strategy, scores = plan.strategy(noises), list[float]()
                for batch, run in zip(self._unseen, self.held_out, strict=True):
                    scores += self._runner.score(strategy, batch, run.pictures)
                    self._spend("held-out prompts", len(batch) * budget / total)
                self.plans[budget] = replace(plan, held_out=tuple(scores))

    @contextmanager
    def _keeping(self, what_is_left: str) -> Iterator[None]:
        """Go on after an interrupt with what was found."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.plans:
                raise
            self.complete = False
            logger.warning("interrupted: %s", what_is_left)


def _batches(places: range, size: int) -> list[range]:
    return [places[start : start + size] for start in range(0, len(places), size)]
