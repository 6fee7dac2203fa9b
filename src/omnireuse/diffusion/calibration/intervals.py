"""What it costs to leave out the steps between two computed ones, from the distances of full runs.

Legend: computed steps h ≤ i ≤ j are the last three before a gap, k a step in the gap, m the computed step behind it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnireuse.diffusion.calibration.record import Distances

__all__ = ["SLOPES", "gap_costs"]

#: How the forecasters that are searched weigh the slope through the last two values.
SLOPES = ("hold", "blend", "polynomial")


def gap_costs(distances: Distances, forecaster: str) -> NDArray[np.float64]:
    """Expected error of the latents that each gap leaves: (steps, steps, steps, steps) over h, i, j, m; inf where the
    order is not h ≤ i ≤ j < m.

    A step that takes Δs off a noise share s passes Δs / s of an error in x0 on to the latents. Steps are taken from the
    full runs, so what earlier gaps have done to the path is left to a search on true runs.

    Args:
        distances: of full runs.
        forecaster: one of `SLOPES`: the slope through i and j is taken not at all, as far as h, i and j say it is
            worth (`Blend`), or wholly.
    """
    total = len(distances.at)
    share = np.clip(distances.at, 1e-6, None)
    passed_on = np.append(-np.diff(share), 0.0) / share
    # Sample by sample: each takes steps⁴ numbers.
    error = np.zeros((total,) * 4)
    for sample in distances.squared:
        error += np.sqrt(_squared_errors(sample, distances.at, forecaster))
    error *= passed_on / len(distances.squared)
    # The sum over the steps strictly between j and m.
    up_to = np.concatenate([np.zeros((total, total, total, 1)), np.cumsum(error, axis=3)], axis=3)
    steps = np.arange(total)
    first = np.broadcast_to(steps[None, None, :, None] + 1, (total, total, total, 1))
    behind_j = np.take_along_axis(up_to, first, axis=3)
    costs: NDArray[np.float64] = up_to[..., :total] - behind_j
    h, i, j, m = np.ogrid[:total, :total, :total, :total]
    costs[(h > i) | (i > j) | (j >= m) | ((i == j) & (j > 0)) | ((h == i) & (i > 0))] = np.inf
    return np.maximum(costs, 0.0)


def _squared_errors(squared: NDArray[np.float64], at: NDArray[np.float64], forecaster: str) -> NDArray[np.float64]:
    """‖x_j + w · slope · (t_k − t_j) − x_k‖² of one sample over h, i, j, k, from the squared distances alone."""
    hold = squared[None, None, :, :]
    if forecaster == "hold":
        return np.broadcast_to(hold, (len(at),) * 4)
    way = at[None, :] - at[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Over i, j, k: how many times the way from i to j the forecast goes on. Over h, i, j: the way from h to i.
        onward = np.nan_to_num(way[None, :, :] / way[:, :, None], nan=0.0, posinf=0.0, neginf=0.0)
    # Over i, j, k: ⟨x_j − x_k, x_j − x_i⟩.
    towards = 0.5 * (squared[None, :, :] + squared[:, :, None] - squared[:, None, :])
    weight = np.ones((1, 1, 1, 1))
    if forecaster == "blend":
        with np.errstate(divide="ignore", invalid="ignore"):
            # Over h, i, j: what the share of the slope through h and i that the value at j bore out falls short of 1.
            along = 0.5 * (squared[:, None, :] - squared[None, :, :] - squared[:, :, None])
            borne_out = np.nan_to_num(along / (onward * squared[:, :, None]), nan=0.0, posinf=0.0, neginf=0.0)
        shortfall = np.clip(1 - borne_out, 0.0, None)
        weight = np.clip(1 - shortfall[..., None] * onward[None], 0.0, None)
        first = np.arange(len(at))
        weight[first, first] = 0.0  # nothing was borne out yet
    scaled = weight * onward[None]
    error = hold + 2 * scaled * towards[None] + scaled**2 * squared[None, :, :, None]
    return np.clip(error, 0.0, None)
