"""Runs of candidates on a set of prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from omnireuse.calibration.observer import Seen
from omnireuse.calibration.runner import Pictures, PipelineRunner
from omnireuse.forecasters import Fitted
from omnireuse.planning.candidate import FITTED, Candidate, Scores
from omnireuse.planning.path import OutputProducts
from omnireuse.tuning.full_run import replayed_steps
from omnireuse.tuning.trials import MeasuredCall, Trial, finished

__all__ = ["Evaluator", "trial_cost"]


def trial_cost(candidate: Candidate, total: int) -> float:
    """Full runs that a trial takes for each prompt: weights are fitted on runs that begin at the first gap."""
    return candidate.cost(total, replayed_steps(total) if candidate.forecaster == FITTED else 0)


class Evaluator:
    """Some of the prompts, and the full runs that candidates are compared with.

    Args:
        spend: told of full runs of one prompt that were spent.
        prompts: their places.
        batch_size: prompts in a call.
        trial_prompts: how many of the prompts candidates are tried on.
    """

    def __init__(
        self,
        runner: PipelineRunner,
        spend: Callable[[float], None],
        prompts: range,
        *,
        batch_size: int,
        trial_prompts: int = 0,
    ) -> None:
        self._runner, self._spend, self._steps = runner, spend, runner.steps
        self._batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
        self._num_trial_batches = -(-min(trial_prompts, len(prompts)) // batch_size)
        self._pictures: list[Pictures] = []
        self._calls: list[MeasuredCall] = []
        """Of the batches that candidates are tried on."""
        self.coordinates: tuple[float, ...] = ()
        """Of the steps, as forecasters see them."""
        self.weights: dict[Candidate, Fitted] = {}
        """All that were fitted."""
        self.num_trial_prompts = sum(map(len, self._batches[: self._num_trial_batches]))
        """Prompts that candidates are tried on: whole batches."""
        self.seen: list[Seen] = []
        """What the full runs have shown, one for each batch."""
        self.products: OutputProducts | None = None
        """Of the outputs of recorded full runs; None where no weights can be fitted."""

    def run_in_full(self, *, record: bool) -> Iterator[int]:
        """Make the full runs; `record` for what plans need. Gives the number of prompts whenever some were run.

        Raises:
            StateError: a full run is not finite.
        """
        products = list[OutputProducts]()
        for number, batch in enumerate(self._batches):
            run = self._runner.full_run(batch, record=record)
            self._pictures.append(run.pictures)
            self.seen.append(run.seen)
            if run.full is not None:
                products.append(run.full.products)
                if number < self._num_trial_batches:
                    self._calls.append(MeasuredCall(replay=batch, full=run.full))
            self._spend(len(run.pictures))
            yield len(run.pictures)
        if len(products) == len(self._batches):
            self.products = OutputProducts.joined(products)
        self.coordinates = self.seen[0].coordinates

    def tried(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Scores]]:
        """Try candidates on the first prompts; fit the weights of those that have some meanwhile."""
        for candidate in candidates:
            if candidate.forecaster != FITTED:
                yield candidate, self._score(candidate, candidate.forecaster, self._num_trial_batches)
                continue
            trial = Trial.of_fit(candidate.steps, self._steps)
            finished(trial.lead(self._calls, self._runner, self._steps, self._pictures))
            self._spend(len(trial.closeness) * trial_cost(candidate, self._steps))
            self.weights[candidate] = Fitted(
                coordinates=self.coordinates, weights=trial.weights, computed=candidate.steps
            )
            yield candidate, tuple(trial.closeness)

    def scores(
        self, candidates: Iterable[Candidate], weights: Mapping[Candidate, Fitted]
    ) -> Iterator[tuple[Candidate, Scores]]:
        """Each candidate with the PSNR of all prompts; after `run_in_full`."""
        for candidate in candidates:
            yield candidate, self._score(candidate, weights.get(candidate, candidate.forecaster))

    def _score(self, candidate: Candidate, forecaster: Fitted | str, batches: int | None = None) -> Scores:
        scores = list[float]()
        for batch, full in list(zip(self._batches, self._pictures, strict=True))[:batches]:
            scores += self._runner.score(candidate, batch, forecaster, full)
            self._spend(len(batch) * len(candidate.steps) / self._steps)
        return tuple(scores)
