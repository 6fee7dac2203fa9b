"""MagCache's ratios, measured on a model's own steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from omnireuse.errors import StateError
from omnireuse.forecasters.base import Forecaster, Memory
from omnireuse.forecasters.hold import HoldMemory

__all__ = ["MagnitudeRecorder"]


@dataclass(frozen=True, kw_only=True)
class MagnitudeRecorder(Forecaster):
    """A forecaster that forecasts nothing and notes the ratio of successive magnitudes of every value it is shown.

    With policy "never" in region "blocks" it sees each branch's residual, one memory for each stream, at every step.

    Args:
        num_streams: streams of the model's block stack.
        stream: which of them counts.
    """

    num_streams: int
    stream: int
    _memories: list[_Magnitudes] = field(default_factory=list, compare=False)

    def start(self, branch: int = 0) -> Memory:
        """A memory that records; the runtime starts one for each stream in turn."""
        memory = _Magnitudes()
        self._memories.append(memory)
        return memory

    def ratios(self, num_branches: int) -> tuple[tuple[float, ...], ...]:
        """For each branch one ratio for each step, averaged over all runs of the longest length. The first is 1.0.

        Raises:
            StateError: nothing was recorded.
        """
        # A memory that was started and never shown anything belongs to no run, and would shift the others.
        streams = [memory.ratios for memory in self._memories if memory.ratios][self.stream :: self.num_streams]
        if not streams:
            raise StateError("no magnitude ratios were recorded; generate with calibration on before asking for them")
        return tuple(_mean_run(streams[branch::num_branches]) for branch in range(num_branches))


class _Magnitudes(HoldMemory):
    """Holds the last value, as `Hold` does, and notes how its magnitude changed."""

    def __init__(self) -> None:
        super().__init__()
        self.ratios: list[float] = []

    def observe(self, at: float, value: torch.Tensor) -> None:
        if self.primed:
            self.ratios.append(magnitude_ratio(value, self.predict(at)))
        super().observe(at, value)


def magnitude_ratio(now: torch.Tensor, before: torch.Tensor) -> float:
    """Mean over tokens of ‖now‖ / ‖before‖, norms over the last axis.

    Source: arXiv 2506.09045, equation 5. Cost: one host synchronisation.
    """
    return float((now.float().norm(dim=-1) / before.float().norm(dim=-1).clamp_min(1e-12)).mean())


def _mean_run(runs: Sequence[Sequence[float]]) -> tuple[float, ...]:
    longest = max(len(run) for run in runs)
    means = (statistics.fmean(column) for column in zip(*(run for run in runs if len(run) == longest), strict=True))
    return (1.0, *means)
