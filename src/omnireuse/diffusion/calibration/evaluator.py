"""Scores of candidates on a set of prompts, whoever does the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate, Scores
from omnireuse.diffusion.calibration.distances import Distances
from omnireuse.diffusion.calibration.fit import Path
from omnireuse.diffusion.calibration.journal import Journal
from omnireuse.diffusion.calibration.observer import Observations
from omnireuse.diffusion.calibration.runner import FitWeights, Pictures, RunInFull, Score, Shared
from omnireuse.diffusion.calibration.workers import Workers
from omnireuse.diffusion.reuse.forecasters import Fitted

__all__ = ["Evaluator"]


class Evaluator:
    """Some of the prompts, and the full runs that candidates are compared with.

    A job is one call of the pipeline: a batch of prompts with one candidate. So work spreads evenly over the workers,
    and no result depends on their number. Scores that the journal holds are not made again.

    Args:
        part: name of these prompts in the journal.
        prompts: their places.
        batch_size: prompts in a call.
        steps: of a full run.
        fit_prompts: how many of the prompts weights are fitted on.
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
        fit_prompts: int = 0,
    ) -> None:
        self._workers, self._journal, self._part = workers, journal, part
        self._batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
        self._num_fit_batches = -(-min(fit_prompts, len(prompts)) // batch_size)
        self._steps = steps
        self._full: list[Shared[Pictures]] = []
        self._paths: dict[int, Shared[Path]] = {}
        self._coordinates: tuple[float, ...] = ()
        self._known: dict[tuple[Candidate, int], list[float]] = {}
        self.weights: dict[Candidate, Fitted] = {}
        """All that were fitted."""
        self.seen: list[Observations] = []
        """What the full runs have shown beside their distances, one for each batch."""

    def run_in_full(self, *, record: bool, advance: Callable[[int], None]) -> Distances | None:
        """Make the full runs.

        Args:
            record: whether to record the distances between the values of the runs.
            advance: called with the number of prompts whenever some were run.

        Returns:
            The distances of all runs; None unless recorded.

        Raises:
            StateError: a full run is not finite.
        """
        jobs = [
            RunInFull(places=batch, record=record, keep_path=number < self._num_fit_batches)
            for number, batch in enumerate(self._batches)
        ]
        results = {}
        full = {}
        for number, result in self._workers.run(jobs):
            full[number] = self._workers.share(result.pictures)
            if result.path is not None:
                self._paths[number] = self._workers.share(result.path)
            results[number] = (result.seen, result.distances)
            self._journal.spend(len(result.pictures))
            self._journal.flush()
            advance(len(result.pictures))
        self._full = [full[number] for number in sorted(full)]
        self.seen = [results[number][0] for number in sorted(results)]
        recorded = [distances for _, (_, distances) in sorted(results.items()) if distances is not None]
        if not recorded:
            return None
        self._coordinates = tuple(recorded[0].coordinates.tolist())
        return Distances.joined(recorded)

    @property
    def can_fit(self) -> bool:
        """Whether weights can be fitted, as a recorded `run_in_full` has shown."""
        return bool(self._paths)

    def fitted(self, candidates: Sequence[Candidate]) -> dict[Candidate, Fitted]:
        """The weights of those candidates that have some; after a recorded `run_in_full`."""
        to_fit = [candidate for candidate in candidates if candidate.forecaster == FITTED]
        missing = [candidate for candidate in to_fit if candidate not in self.weights]
        numbers = sorted(self._paths)
        batches = [self._batches[number] for number in numbers]
        jobs = [
            FitWeights(
                candidate=candidate,
                batches=batches,
                paths=[self._paths[number] for number in numbers],
                coordinates=self._coordinates,
                full=self._full[numbers[-1]],
            )
            for candidate in missing
        ]
        for place, (fit, psnr) in self._workers.run(jobs):
            self.weights[missing[place]] = fit
            if psnr is not None:
                self._known[missing[place], numbers[-1]] = psnr
            self._spend(sum(map(len, batches)), missing[place])
        return {candidate: self.weights[candidate] for candidate in to_fit}

    def scores(
        self, candidates: Sequence[Candidate], fitted: Mapping[Candidate, Fitted] | None = None
    ) -> Iterator[tuple[Candidate, Scores]]:
        """As `Scorer.scores`; after `run_in_full`. Weights that are not given are fitted first."""
        unknown = []
        for candidate in candidates:
            if (known := self._journal.find(self._part, candidate)) is None:
                unknown.append(candidate)
            else:
                yield candidate, known
        if not unknown:
            return
        weights = self.fitted(unknown) if fitted is None else fitted
        made = {candidate: self._scored_by_fit(candidate) for candidate in unknown}
        jobs = [
            Score(
                candidate=candidate,
                places=self._batches[number],
                forecaster=weights.get(candidate, candidate.forecaster),
                full=self._full[number],
            )
            for candidate in unknown
            for number in range(len(self._batches))
            if number not in made[candidate]
        ]
        for candidate in unknown:
            if len(made[candidate]) == len(self._batches):
                yield candidate, self._note(candidate, made[candidate])
        for place, psnr in self._workers.run(jobs):
            job = jobs[place]
            made[job.candidate][self._batches.index(job.places)] = psnr
            self._spend(len(psnr), job.candidate)
            if len(made[job.candidate]) == len(self._batches):
                yield job.candidate, self._note(job.candidate, made[job.candidate])

    def _scored_by_fit(self, candidate: Candidate) -> dict[int, list[float]]:
        numbers = range(len(self._batches))
        return {number: self._known[candidate, number] for number in numbers if (candidate, number) in self._known}

    def _note(self, candidate: Candidate, made: Mapping[int, list[float]]) -> Scores:
        scores = tuple(each for number in sorted(made) for each in made[number])
        self._journal.add(self._part, candidate, scores)
        return scores

    def _spend(self, prompts: int, candidate: Candidate) -> None:
        self._journal.spend(prompts * len(candidate.steps) / self._steps)
