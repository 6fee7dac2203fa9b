"""How far apart the values at all steps of a full run are: all that a forecast's error depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Distances"]


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Full runs of one number of steps.

    Attributes:
        coordinates: (steps,) of each step, as forecasters see it.
        squared: (samples, steps, steps) squared distances between the values at any two steps, as a share of the
            squared norm of the last value.
    """

    coordinates: NDArray[np.float64]
    squared: NDArray[np.float64]

    @classmethod
    def between(cls, coordinates: Sequence[float], values: Sequence[torch.Tensor]) -> Distances:
        """The distances between the values of one run, each (samples, …)."""
        # Relative to the last value, and in float64: inner products of neighbours differ in the last digits only.
        stacked = torch.stack(list(values), dim=1).flatten(2)
        # Apple's GPUs have no float64.
        stacked = (stacked.cpu() if stacked.device.type == "mps" else stacked).double()
        last = stacked[:, -1:]
        centred = stacked - last
        products = centred @ centred.transpose(1, 2)
        norms = products.diagonal(dim1=1, dim2=2)
        squared = (norms[:, :, None] + norms[:, None, :] - 2 * products).clamp_min(0.0)
        scale = last.square().sum(-1, keepdim=True).clamp_min(1e-12)
        return cls(coordinates=np.array(coordinates), squared=(squared / scale).cpu().numpy())

    @classmethod
    def joined(cls, runs: Sequence[Distances]) -> Distances:
        """The samples of all runs together; at least one run."""
        return cls(coordinates=runs[0].coordinates, squared=np.concatenate([run.squared for run in runs]))
