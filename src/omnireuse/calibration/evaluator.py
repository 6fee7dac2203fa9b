"""Runs of candidates on a set of prompts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from omnireuse.calibration.observer import Seen
from omnireuse.calibration.results import Result, Results
from omnireuse.calibration.runs import Pictures, Runner, full_run, score
from omnireuse.forecasters import Fitted
from omnireuse.planning.candidate import FITTED, Candidate, Scores
from omnireuse.planning.path import OutputProducts
from omnireuse.tuning.full_run import replayed_steps
from omnireuse.tuning.trials import MeasuredCall, Trial

__all__ = ["Evaluator", "trial_cost"]


def trial_cost(candidate: Candidate, total: int) -> float:
    """Full runs that a trial takes for each prompt: weights are fitted on runs that begin at the first gap."""
    return candidate.cost(total, replayed_steps(total) if candidate.forecaster == FITTED else 0)


class Evaluator:
    """Some of the prompts, and the full runs that candidates are compared with.

    Results that the journal holds are not made again.

    Args:
        part: name of these prompts in the journal.
        prompts: their places.
        batch_size: prompts in a call.
        steps: of a full run.
        trial_prompts: how many of the prompts candidates are tried on.
    """

    def __init__(
        self,
        runner: Runner,
        results: Results,
        part: str,
        prompts: range,
        *,
        batch_size: int,
        steps: int,
        trial_prompts: int = 0,
    ) -> None:
        self._runner, self._results, self._part = runner, results, part
        self._batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
        self._num_trial_batches = -(-min(trial_prompts, len(prompts)) // batch_size)
        self._steps = steps
        self._pictures: list[Pictures] = []
        self._calls: list[MeasuredCall] = []
        """Of the batches that candidates are tried on."""
        self._coordinates: tuple[float, ...] = ()
        self.weights: dict[Candidate, Fitted] = {}
        """All that were fitted."""
        self.num_trial_prompts = sum(map(len, self._batches[: self._num_trial_batches]))
        """Prompts that candidates are tried on: whole batches."""
        self.seen: list[Seen] = []
        """What the full runs have shown, one for each batch."""
        self.products: OutputProducts | None = None
        """Of the outputs of recorded full runs; None where no weights can be fitted."""

    def run_in_full(self, *, record: bool, advance: Callable[[int], None]) -> tuple[float, ...]:
        """Make the full runs.

        Args:
            record: whether to record what the plan of schedules needs.
            advance: called with the number of prompts whenever some were run.

        Returns:
            The coordinates of the steps, as forecasters see them.

        Raises:
            StateError: a full run is not finite.
        """
        products = list[OutputProducts]()
        for number, batch in enumerate(self._batches):
            run = full_run(self._runner, batch, record=record)
            self._pictures.append(run.pictures)
            self.seen.append(run.seen)
            if run.full is not None:
                products.append(run.full.products)
                if number < self._num_trial_batches:
                    self._calls.append(MeasuredCall(replay=batch, full=run.full))
            self._results.spend(len(run.pictures))
            advance(len(run.pictures))
        if len(products) == len(self._batches):
            self.products = OutputProducts.joined(products)
        self._coordinates = self.seen[0].coordinates
        return self._coordinates

    def knows(self, candidate: Candidate) -> bool:
        """Whether the journal holds the candidate's result on these prompts."""
        return self._results.find(self._part, candidate) is not None

    def tried(self, candidates: Sequence[Candidate]) -> Generator[tuple[Candidate, Scores]]:
        """Try candidates on the first prompts, the known ones first; fit the weights of those that have some
        meanwhile."""
        return self._found(candidates, self._try)

    def scores(
        self, candidates: Sequence[Candidate], weights: Mapping[Candidate, Fitted]
    ) -> Generator[tuple[Candidate, Scores]]:
        """Each candidate with the PSNR of all prompts, the known ones first; after `run_in_full`."""
        return self._found(candidates, lambda each: self._score(each, weights.get(each, each.forecaster)))

    def _found(
        self, candidates: Sequence[Candidate], make: Callable[[Candidate], Result]
    ) -> Generator[tuple[Candidate, Scores]]:
        for candidate in sorted(candidates, key=lambda each: not self.knows(each)):
            result = self._results.find(self._part, candidate)
            if result is None:
                result = make(candidate)
                self._results.add(self._part, candidate, result)
            if result.weights:
                self.weights[candidate] = Fitted(
                    coordinates=self._coordinates, weights=result.weights, computed=candidate.steps
                )
            yield candidate, result.psnr

    def _try(self, candidate: Candidate) -> Result:
        if candidate.forecaster != FITTED:
            return self._score(candidate, candidate.forecaster, self._num_trial_batches)
        trial = Trial.of_fit(candidate.steps, self._steps)
        trial.lead(self._calls, self._runner, self._steps, self._pictures)
        self._results.spend(len(trial.closeness) * trial_cost(candidate, self._steps))
        return Result(psnr=tuple(trial.closeness), weights=trial.weights)

    def _score(self, candidate: Candidate, forecaster: Fitted | str, batches: int | None = None) -> Result:
        scores = list[float]()
        for batch, full in list(zip(self._batches, self._pictures, strict=True))[:batches]:
            scores += score(self._runner, candidate, batch, forecaster, full)
            self._results.spend(len(batch) * len(candidate.steps) / self._steps)
        return Result(psnr=tuple(scores))
