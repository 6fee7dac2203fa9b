"""What a search must know of a full run: how far apart the values at all its steps are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse.diffusion.reuse.forecasters import Forecaster, Memory
from omnireuse.errors import StateError

__all__ = ["DistanceRecorder", "Distances"]


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Full runs of one schedule, reduced to what every forecast's error can be computed from.

    Attributes:
        at: (steps,) coordinate of each step, as forecasters see it.
        squared: (samples, steps, steps) squared distances between the values at any two steps, as a share of the
            squared norm of the last one.
    """

    at: NDArray[np.float64]
    squared: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DistanceRecorder(Forecaster):
    """A forecaster that forecasts nothing and notes how far apart the values of a run are.

    With policy "never" in region "step" it sees what is remembered of every step. It keeps the values of one run at a
    time, whatever the number of runs.
    """

    _runs: list[_Values] = field(default_factory=list, compare=False)
    _found: list[Distances] = field(default_factory=list, compare=False)

    def start(self, branch: int = 0) -> Memory:
        """A memory for the next run; the last one is reduced to its distances."""
        self._reduce()
        self._runs.append(_Values())
        return self._runs[-1]

    def _reduce(self) -> None:
        self._found.extend(run.distances() for run in self._runs if run.values)
        self._runs.clear()

    def distances(self, steps: int) -> Distances:
        """All runs of so many steps together.

        Raises:
            StateError: none of them was recorded from its first to its last step.
        """
        self._reduce()
        whole = [found for found in self._found if len(found.at) == steps]
        if not whole:
            raise StateError(f"no run was recorded over all its {steps} steps")
        return Distances(at=whole[0].at, squared=np.concatenate([found.squared for found in whole]))


class _Values(Memory):
    """All values of a run, in the order of its steps. It is never primed, so it is never asked."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.values: list[torch.Tensor] = []

    @property
    def primed(self) -> bool:
        return False

    def observe(self, at: float, value: torch.Tensor) -> None:
        self.at.append(at)
        self.values.append(value)

    def predict(self, at: float) -> torch.Tensor:
        raise StateError("a recorder forecasts nothing")

    def distances(self) -> Distances:
        # Seen from the last value, and in float64: neighbours differ in the last digits of their inner products.
        stacked = torch.stack(self.values, dim=1).flatten(2)
        # Apple's GPUs have no float64.
        stacked = (stacked.cpu() if stacked.device.type == "mps" else stacked).double()
        last = stacked[:, -1:]
        centred = stacked - last
        products = centred @ centred.transpose(1, 2)
        norms = products.diagonal(dim1=1, dim2=2)
        squared = (norms[:, :, None] + norms[:, None, :] - 2 * products).clamp_min(0.0)
        scale = last.square().sum(-1, keepdim=True).clamp_min(1e-12)
        return Distances(at=np.array(self.at), squared=(squared / scale).cpu().numpy())
