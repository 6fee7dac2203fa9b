"""TeaCache's polynomial and MagCache's ratios, measured on a model's own full runs."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from omnireuse import messages
from omnireuse.errors import ConfigError, StateError
from omnireuse.forecasters.base import Forecaster, Memory, PolynomialMemory
from omnireuse.loop.events import Decision
from omnireuse.profiles.measurements import Measurements, TeaCacheFit

__all__ = ["MagnitudeRecorder", "WatchedRun", "fit_tea_cache", "measured"]

logger = logging.getLogger("omnireuse")

DEGREE = 4
FEWEST_PAIRS = 2 * (DEGREE + 1)


def fit_tea_cache(events: Iterable[Decision]) -> tuple[float, ...]:
    """Coefficients from signal change to output change, highest power first.

    The events are those of full runs with `policy="never", region="blocks", signal="modulated_input"` and the
    forecaster "hold". There `drift` is the change of the signal, and `error` the change of the stack's residual, over
    the same step.

    Source: arXiv 2411.19108, section 3.3 (a least-squares polynomial of degree 4).

    Raises:
        ConfigError: fewer than ten steps with both figures.
    """
    pairs = changes_of(events)
    if len(pairs) < FEWEST_PAIRS:
        raise ConfigError(messages.TOO_FEW_PAIRS, least=FEWEST_PAIRS, got=len(pairs))
    return fit_polynomial(pairs)


def changes_of(events: Iterable[Decision]) -> list[tuple[float, float]]:
    """The relative L1 changes of the signal and of the output over each step that shows both."""
    return [(e.drift, e.error) for e in events if e.drift is not None and e.error is not None]


def fit_polynomial(pairs: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """The least-squares polynomial from signal change to output change, highest power first."""
    drifts, changes = np.array(pairs).T
    # Fitted in units of the largest drift, for conditioning, and scaled back.
    unit = max(float(drifts.max()), 1e-12)
    fitted = np.polyfit(drifts / unit, changes, DEGREE)
    return tuple(float(c / unit**power) for c, power in zip(fitted, range(DEGREE, -1, -1), strict=True))


def share_explained(coefficients: Sequence[float], pairs: Sequence[tuple[float, float]]) -> float | None:
    """R² of a polynomial on such pairs; None without pairs, or if the output does not vary."""
    if not pairs:
        return None
    drifts, changes = np.array(pairs).T
    spread = float(np.square(changes - changes.mean()).sum())
    return 1 - float(np.square(changes - np.polyval(coefficients, drifts)).sum()) / spread if spread else None


@dataclass(frozen=True, kw_only=True)
class MagnitudeRecorder(Forecaster):
    """A forecaster that records the ratio of successive magnitudes of each computed value.

    With policy "never" in region "blocks" it sees each branch's residual, one memory for each stream, at every step.

    Args:
        num_streams: streams of the model's block stack.
        stream: which of them counts.
    """

    num_streams: int
    stream: int
    _ratios: list[list[float]] = field(default_factory=list, compare=False)
    """Of each memory: not the memories, whose tensors end with their run."""

    def start(self, branch: int = 0) -> Memory:
        """A memory that records; the runtime starts one for each stream in turn."""
        memory = _Magnitudes()
        self._ratios.append(memory.ratios)
        return memory

    def ratios(self, num_branches: int) -> tuple[tuple[float, ...], ...]:
        """For each branch one ratio for each step, averaged over all runs of the longest length. The first is 1.0.

        Raises:
            StateError: nothing was recorded.
        """
        # A memory that was started and never shown anything belongs to no run, and would shift the others.
        streams = [ratios for ratios in self._ratios if ratios][self.stream :: self.num_streams]
        if not streams:
            raise StateError("no magnitude ratios were recorded; generate with calibration on before asking for them")
        return tuple(_mean_run(streams[branch::num_branches]) for branch in range(num_branches))


class _Magnitudes(PolynomialMemory):
    """Holds the last value, as `Hold` does, and notes how its magnitude changed.

    Source: arXiv 2506.09045, equation 5: the mean over tokens of ‖now‖ / ‖before‖, norms over the last axis. Cost: one
    host synchronisation a value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ratios: list[float] = []

    def observe(self, at: float, value: torch.Tensor) -> None:
        if self.primed:
            before = self.predict(at).float().norm(dim=-1).clamp_min(1e-12)
            self.ratios.append(float((value.float().norm(dim=-1) / before).mean()))
        super().observe(at, value)


def _mean_run(runs: Sequence[Sequence[float]]) -> tuple[float, ...]:
    longest = max(len(run) for run in runs)
    means = (statistics.fmean(column) for column in zip(*(run for run in runs if len(run) == longest), strict=True))
    return (1.0, *means)


class WatchedRun(NamedTuple):
    """What a full run has shown of the model's blocks.

    Attributes:
        changes: of the modulated input and of what the block stack adds, as `changes_of`.
        ratios: MagCache's for each branch and step; None if a branch was not called at every step.
    """

    changes: Sequence[tuple[float, float]] = ()
    ratios: tuple[tuple[float, ...], ...] | None = None

    @classmethod
    def of(cls, recorder: Forecaster, events: Sequence[Decision], total: int) -> WatchedRun:
        """From the decisions of a run of `total` steps; empty without a `MagnitudeRecorder`."""
        if not isinstance(recorder, MagnitudeRecorder):
            return cls()
        calls = Counter(event.branch for event in events)
        return cls(changes_of(events), recorder.ratios(len(calls)) if {*calls.values()} == {total} else None)


def measured(searched: Sequence[WatchedRun], held_out: Sequence[WatchedRun], blocks_unseen: str) -> Measurements:
    """Means over all runs, and fits to the runs for the search, judged on the others; at least one of each.

    Args:
        blocks_unseen: why the blocks were not watched, in words; empty if they were.
    """
    runs = [*searched, *held_out]
    unmeasured = {"blocks": blocks_unseen} if blocks_unseen else {}
    tea_cache = mag_ratios = None
    if not blocks_unseen:
        changes, judged = ([pair for run in those for pair in run.changes] for those in (searched, held_out))
        if len(changes) < FEWEST_PAIRS:
            unmeasured["tea_cache"] = f"{len(changes)} steps were seen, and {FEWEST_PAIRS} are needed to fit it"
        else:
            coefficients = fit_polynomial(changes)
            r2, r2_held_out = (share_explained(coefficients, pairs) for pairs in (changes, judged))
            tea_cache = TeaCacheFit(
                coefficients=coefficients,
                pairs=len(changes),
                r2=None if r2 is None else _short(r2, 4),
                r2_held_out=None if r2_held_out is None else _short(r2_held_out, 4),
            )
        ratios = [run.ratios for run in runs if run.ratios is not None]
        if len(ratios) < len(runs):
            unmeasured["mag_cache"] = "a branch was not called at every step"
        else:
            branches = zip(*ratios, strict=True)
            mag_ratios = tuple(
                tuple(_short(statistics.fmean(step), 5) for step in zip(*each, strict=True)) for each in branches
            )
        for name, why in unmeasured.items():
            logger.info("%s is not measured: %s", name, why)
    return Measurements(tea_cache=tea_cache, mag_ratios=mag_ratios, unmeasured=unmeasured)


def _short(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
