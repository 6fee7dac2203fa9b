"""Runs of candidates on a set of prompts, whoever does them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate, Scores
from omnireuse.diffusion.calibration.distances import Distances
from omnireuse.diffusion.calibration.jobs import Pictures, RunInFull, Score, Shared, Trial, replayed_steps
from omnireuse.diffusion.calibration.journal import Journal, Result
from omnireuse.diffusion.calibration.observer import Observations
from omnireuse.diffusion.calibration.path import OutputProducts, Path
from omnireuse.diffusion.calibration.workers import Workers
from omnireuse.diffusion.reuse.forecasters import Fitted

__all__ = ["Evaluator", "trial_cost"]


def trial_cost(candidate: Candidate, total: int) -> float:
    """Full runs that a trial takes for each prompt: weights are fitted on runs that begin at the first gap."""
    saved = min(candidate.steps_before_gap, replayed_steps(total)) if candidate.forecaster == FITTED else 0
    return (len(candidate.steps) - saved) / total


class Evaluator:
    """Some of the prompts, and the full runs that candidates are compared with.

    No result depends on the number of workers. Results that the journal holds are not made again.

    Args:
        part: name of these prompts in the journal.
        prompts: their places.
        batch_size: prompts in a call.
        steps: of a full run.
        trial_prompts: how many of the prompts candidates are tried on.
    """

    def __init__(
        self,
        workers: Workers,
        journal: Journal,
        part: str,
        prompts: range,
        *,
        batch_size: int,
        steps: int,
        trial_prompts: int = 0,
    ) -> None:
        self._workers, self._journal, self._part = workers, journal, part
        self._batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
        self._num_trial_batches = -(-min(trial_prompts, len(prompts)) // batch_size)
        self._steps = steps
        self._full: list[tuple[Shared[Pictures], Shared[Path] | None]] = []
        self._coordinates: tuple[float, ...] = ()
        self.weights: dict[Candidate, Fitted] = {}
        """All that were fitted."""
        self.num_trial_prompts = sum(map(len, self._batches[: self._num_trial_batches]))
        """Prompts that candidates are tried on: whole batches."""
        self.seen: list[Observations] = []
        """What the full runs have shown beside their distances, one for each batch."""
        self.products: OutputProducts | None = None
        """Of the outputs of recorded full runs; None where no weights can be fitted."""

    def run_in_full(self, *, record: bool, advance: Callable[[int], None]) -> Distances | None:
        """Make the full runs.

        Args:
            record: whether to record what the plan of schedules needs.
            advance: called with the number of prompts whenever some were run.

        Returns:
            The distances of all runs; None unless recorded.

        Raises:
            StateError: a full run is not finite.
        """
        jobs = [
            RunInFull(places=batch, record=record, keep_path=number < self._num_trial_batches)
            for number, batch in enumerate(self._batches)
        ]
        results = {}
        full = {}
        for number, result in self._workers.run(jobs):
            path = None if result.path is None else self._workers.share(result.path)
            full[number] = self._workers.share(result.pictures), path
            results[number] = (result.seen, result.distances, result.products)
            self._journal.spend(len(result.pictures))
            self._journal.flush()
            advance(len(result.pictures))
        self._full = [full[number] for number in sorted(full)]
        self.seen = [results[number][0] for number in sorted(results)]
        products = [result[2] for _, result in sorted(results.items()) if result[2] is not None]
        if len(products) == len(jobs):
            self.products = OutputProducts.joined(products)
        recorded = [result[1] for _, result in sorted(results.items()) if result[1] is not None]
        if not recorded:
            return None
        self._coordinates = tuple(recorded[0].coordinates.tolist())
        return Distances.joined(recorded)

    def knows(self, candidate: Candidate) -> bool:
        """Whether the journal holds the candidate's result on these prompts."""
        return self._journal.find(self._part, candidate) is not None

    def tried(self, candidates: Sequence[Candidate]) -> Generator[tuple[Candidate, Scores]]:
        """Try candidates on the first prompts, in any order; fit the weights of those that have some meanwhile."""
        batches = self._batches[: self._num_trial_batches]
        full = self._full[: self._num_trial_batches]
        unknown = []
        for candidate in candidates:
            if (known := self._journal.find(self._part, candidate)) is None:
                unknown.append(candidate)
            else:
                self._keep(candidate, known)
                yield candidate, known.psnr
        jobs = [
            Trial(candidate=candidate, batches=batches, full=full, coordinates=self._coordinates)
            for candidate in unknown
        ]
        for place, (fitted, psnr) in self._workers.run(jobs):
            result = Result(psnr=tuple(psnr), weights=() if fitted is None else fitted.weights)
            self._journal.spend(len(psnr) * trial_cost(unknown[place], self._steps))
            self._journal.add(self._part, unknown[place], result)
            self._keep(unknown[place], result)
            yield unknown[place], result.psnr

    def _keep(self, candidate: Candidate, result: Result) -> None:
        if result.weights:
            self.weights[candidate] = Fitted(
                coordinates=self._coordinates, weights=result.weights, computed=candidate.steps
            )

    def scores(
        self, candidates: Sequence[Candidate], weights: Mapping[Candidate, Fitted]
    ) -> Iterator[tuple[Candidate, Scores]]:
        """Each candidate with the PSNR of all prompts, in any order; after `run_in_full`."""
        unknown = []
        for candidate in candidates:
            if (known := self._journal.find(self._part, candidate)) is None:
                unknown.append(candidate)
            else:
                yield candidate, known.psnr
        made: dict[Candidate, dict[int, list[float]]] = {candidate: {} for candidate in unknown}
        numbers = range(len(self._batches))
        jobs = [
            Score(
                candidate=candidate,
                places=self._batches[number],
                forecaster=weights.get(candidate, candidate.forecaster),
                full=self._full[number][0],
            )
            for candidate in unknown
            for number in numbers
        ]
        for place, psnr in self._workers.run(jobs):
            candidate = jobs[place].candidate
            made[candidate][place % len(numbers)] = psnr
            self._journal.spend(len(psnr) * len(candidate.steps) / self._steps)
            if len(made[candidate]) == len(numbers):
                scores = tuple(each for number in numbers for each in made[candidate][number])
                self._journal.add(self._part, candidate, Result(psnr=scores))
                yield candidate, scores
