"""What candidates are worth on a set of prompts, whoever does the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from omnireuse.diffusion.calibration.candidate import FITTED, Candidate
from omnireuse.diffusion.calibration.observer import Observations
from omnireuse.diffusion.calibration.record import Distances
from omnireuse.diffusion.calibration.workers import Workers
from omnireuse.diffusion.reuse.forecasters import Fitted

__all__ = ["FIT_PROMPTS", "Evaluator", "Scorer", "Scores"]

FIT_PROMPTS = 8
"""Prompts that weights are fitted on unless somebody says otherwise: a few numbers a step need no more."""

#: PSNR in dB of each prompt to its full run.
Scores = tuple[float, ...]


class Scorer(Protocol):
    """Says what candidates are worth."""

    def scores(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Scores]]:
        """Each candidate with its PSNR of every prompt, as they are done; who stops listening gives up the rest."""


class Evaluator:
    """Some of the judges' prompts, and the full runs that candidates are held against.

    The unit of work is one call of the pipeline: a batch of prompts with one candidate. So the work spreads evenly over
    any number of workers, a full run is made once whatever their number, and no result depends on who made it.

    Args:
        workers: do the runs.
        prompts: places of the prompts.
        batch_size: prompts a call.
        steps: of a full run.
        fit_prompts: how many of the prompts weights are fitted on.
    """

    def __init__(
        self, workers: Workers, prompts: range, *, batch_size: int, steps: int, fit_prompts: int = FIT_PROMPTS
    ) -> None:
        self._workers = workers
        self._batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
        self._steps = steps
        self._fit_prompts = fit_prompts
        self._full: dict[int, Any] = {}
        self._paths: dict[int, Any] = {}
        self._at: tuple[float, ...] = ()
        self.weights: dict[Candidate, Fitted] = {}
        """All that were fitted."""
        self._known: dict[tuple[Candidate, int], list[float]] = {}
        self.seen: list[Observations] = []
        """What the full runs have shown beside their distances, a batch each."""
        self.runs = 0.0
        """Full runs of one prompt that were spent, reused steps not counted."""

    def run_in_full(self, *, record: bool, advance: Callable[[int], None]) -> list[Distances]:
        """Make the pictures that candidates are held against.

        Args:
            record: whether to note how far apart the values of the runs are.
            advance: told the number of prompts that were run whenever some were.

        Returns:
            The distances of each batch; empty unless recorded.

        Raises:
            StateError: a full run is not finite.
        """
        recorded: dict[int, Distances] = {}
        seen: dict[int, Observations] = {}
        keep = [record and batch.start - self._batches[0].start < self._fit_prompts for batch in self._batches]
        calls = [(batch, record, kept) for batch, kept in zip(self._batches, keep, strict=True)]
        for number, made in self._workers.run("full_run", calls):
            self._full[number] = self._workers.share(made.pictures)
            if made.path is not None:
                self._paths[number] = self._workers.share(made.path)
            self.runs += len(made.pictures)
            seen[number] = made.seen
            if made.distances is not None:
                recorded[number] = made.distances
            advance(len(made.pictures))
        self.seen = [seen[number] for number in sorted(seen)]
        if recorded:
            self._at = tuple(recorded[0].at.tolist())
        return [recorded[number] for number in sorted(recorded)]

    @property
    def can_fit(self) -> bool:
        """Whether weights can be fitted, as a recorded `run_in_full` has shown."""
        return bool(self._paths)

    def fitted(self, candidates: Sequence[Candidate]) -> dict[Candidate, Fitted]:
        """The weights of those candidates that have some; after a recorded `run_in_full`."""
        to_fit = [candidate for candidate in candidates if candidate.forecaster == FITTED]
        asked = [candidate for candidate in to_fit if candidate not in self.weights]
        batches = [self._batches[number] for number in sorted(self._paths)]
        paths = [self._paths[number] for number in sorted(self._paths)]
        full = self._full[max(self._paths)] if asked else None
        calls = [(batches, candidate, self._at, full, *paths) for candidate in asked]
        for place, (fit, psnr) in self._workers.run("fit", calls):
            self.weights[asked[place]] = fit
            if psnr is not None:
                self._known[asked[place], max(self._paths)] = psnr
            self.runs += sum(map(len, batches)) * len(asked[place].steps) / self._steps
        return {candidate: self.weights[candidate] for candidate in to_fit}

    def scores(
        self, candidates: Sequence[Candidate], fitted: Mapping[Candidate, Fitted] | None = None
    ) -> Iterator[tuple[Candidate, Scores]]:
        """As `Scorer.scores`; after `run_in_full`. Weights that are not given are fitted first."""
        weights = self.fitted(candidates) if fitted is None else fitted
        made: dict[Candidate, dict[int, list[float]]] = {candidate: {} for candidate in candidates}
        work = []
        for each in ((candidate, number) for candidate in candidates for number in range(len(self._batches))):
            if each in self._known:
                made[each[0]][each[1]] = self._known[each]
            else:
                work.append(each)
        calls = [
            (self._batches[number], candidate, weights.get(candidate, candidate.forecaster), self._full[number])
            for candidate, number in work
        ]
        for candidate in [each for each in candidates if len(made[each]) == len(self._batches)]:
            yield candidate, self._in_order(made[candidate])
        for place, psnr in self._workers.run("psnr", calls):
            candidate, number = work[place]
            made[candidate][number] = psnr
            self.runs += len(psnr) * len(candidate.steps) / self._steps
            if len(made[candidate]) == len(self._batches):
                yield candidate, self._in_order(made[candidate])

    @staticmethod
    def _in_order(made: Mapping[int, list[float]]) -> Scores:
        return tuple(each for number in sorted(made) for each in made[number])
