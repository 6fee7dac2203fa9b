"""Schedules planned from the outputs of full runs alone: the least expected error for each number of computed steps.

Computed steps h ≤ g ≤ i are the last three before a gap, and j is the computed step that ends it. Before the start of
a run they count as step 0. Forecasts over the gap are the best weighted sums of the outputs at h, g and i; at j the
output there joins the sum and corrects them. What either leaves of the true outputs follows from their inner products.

Source: a schedule as the cheapest path through the errors of intervals, as in LeMiCa, arXiv 2511.00090; the errors are
those of fitted weights here, and come from full runs alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from omnireuse.planning.path import OutputProducts
from omnireuse.policies.spread import cheapest_path

__all__ = ["DISTURBANCE", "Planner"]

Array = NDArray[np.float64]

DISTURBANCE = 0.3
"""Share of the squared error of the forecasts over a gap that remains after the correction, because the output at j is
computed on latents that the forecasts have displaced. Chosen on ``shapes-flux``; plans for ``shapes-wan`` do as well
with it (``python -m bench calibration``)."""
LONGEST_GAP = 2.5
"""Longest gap that a plan may have, as a multiple of the mean gap of the smallest budget."""
RIDGE = 1e-9
"""As for the fit of weights."""
ROUNDS = 6
"""Plans are made anew with the weights of samples that the last plan implies; few change after the third round."""


class Planner:
    """Plans schedules for runs like these.

    The expected squared error of a sample's final latents is the sum over its gaps. A plan has the least mean of its
    logarithm over the samples, as the mean PSNR has: samples are weighted by the inverse of their errors, in rounds.

    Args:
        runs: what is known of full runs, at least one.
        fewest: the smallest number of computed steps that is planned for, ≥ 2.
        growth: how errors grow on their way to the final latents, beyond what the scheduler's arithmetic makes of
            them: an error at the noise fraction s grows by exp(growth · s), squared.
        coordinates: (steps,) noise fraction at each step.
    """

    def __init__(
        self, runs: Sequence[OutputProducts], coordinates: Iterable[float], *, fewest: int, growth: float
    ) -> None:
        outputs = OutputProducts.joined(runs)
        self._steps = len(outputs.effects)
        self._longest = min(math.ceil(LONGEST_GAP * self._steps / fewest), self._steps - 1)
        self._grown = np.exp(growth * np.clip([*coordinates, 0.0], 0.0, 1.0))
        self._sums = _Sums(outputs)
        axis = self._longest
        # Over the gap after i, then i, the gap before i, the gap before g, samples. All gaps from 1 on.
        self._errors = np.full((axis, self._steps, axis, axis, len(outputs.products)), np.inf)
        self._last = self._errors[0].copy()
        i, before, earlier = np.indices((self._steps, axis, axis)) + np.array([0, 1, 1])[:, None, None, None]
        reached = (i - before - earlier >= 0) | ((i == before) & (earlier == 1))
        reached |= (i == 0) & (before == 1) & (earlier == 1)
        for gap in range(1, axis + 1):
            for table, ends in ((self._errors[gap - 1], i + gap < self._steps), (self._last, i + gap == self._steps)):
                at = np.nonzero(reached & ends)
                nodes = np.stack([i[at], (i - before)[at], (i - before - earlier)[at]], axis=1).clip(0)
                table[at] = self._gap_errors(nodes, gap)
        # Edges between states (i, the gap before i, the gap before g), sorted by target, then by origin.
        gap_index, step, recent, past = np.nonzero(np.isfinite(self._errors[..., 0]))
        origins = (step * axis + recent) * axis + past
        targets = ((step + gap_index + 1) * axis + gap_index) * axis + recent
        order = np.lexsort((origins, targets))
        self._edges = origins[order], targets[order], gap_index[order] + 1

    def _gap_errors(self, nodes: NDArray[np.intp], gap: int) -> Array:
        """(gaps, samples) of gaps after i, g, h = `nodes`."""
        if not len(nodes) or gap == 1:
            return np.zeros((len(nodes), self._errors.shape[-1]))
        ends = nodes[:, 0] + gap
        forecast = self._sums.left(nodes, nodes[:, 0] + 1, ends)
        if ends[0] == self._steps:
            # No computed step corrects the last gap. `ends` are all the same then.
            return forecast
        corrected = self._sums.left(np.column_stack([ends, nodes]), nodes[:, 0] + 1, ends + 1)
        grown: Array = self._grown[ends, None] * (corrected + DISTURBANCE * forecast)
        return grown

    def best(self, budget: int) -> tuple[int, ...]:
        """The best schedule of `budget` computed steps."""
        shares = np.ones(self._errors.shape[-1])
        steps: tuple[int, ...] = ()
        for _ in range(ROUNDS):
            before, steps = steps, self._cheapest(budget, shares)
            if steps == before:
                break
            error = self._error(steps)
            shares = 1 / (error + 0.05 * error.mean() + 1e-12)
        return steps

    def expected(self, steps: tuple[int, ...]) -> float:
        """The expected PSNR of a schedule in dB, up to a constant; -inf if a gap is longer than plans have."""
        return float(-10 * np.log10(self._error(steps) + 1e-12).mean())

    def _error(self, steps: tuple[int, ...]) -> Array:
        error = np.zeros(self._errors.shape[-1])
        before, earlier = 1, 1
        for i, j in zip(steps, (*steps[1:], self._steps), strict=True):
            if j - i > self._longest:
                return np.full_like(error, np.inf)
            table = self._last if j == self._steps else self._errors[j - i - 1]
            error += table[i, before - 1, earlier - 1]
            before, earlier = j - i, before if i else 1
        return error

    def _cheapest(self, budget: int, shares: Array) -> tuple[int, ...]:
        """The path with the least sum over gaps; ties go to the shorter gap."""
        origins, targets, gaps = self._edges
        costs, last = (self._errors @ shares).reshape(self._longest, -1), (self._last @ shares).ravel()
        path = cheapest_path(origins, targets, costs[gaps - 1, origins], last, budget - 1)
        return tuple(state // self._longest**2 for state in path)


class _Sums:
    """The errors of the best weighted sums, from sums of inner products."""

    def __init__(self, outputs: OutputProducts) -> None:
        samples, self._branches, self._steps, _, _ = outputs.products.shape
        size = self._branches * self._steps
        self._products = outputs.products.reshape(samples, size, size)
        effects = np.tile(outputs.effects, self._branches)
        # Inner products with the sum of all outputs' effects before a step, and of two such sums.
        towards = (self._products * effects).reshape(samples, size, self._branches, self._steps).sum(2)
        self._towards = np.concatenate([np.zeros((samples, size, 1)), towards.cumsum(2)], axis=2)
        both = (self._towards * effects[:, None]).reshape(samples, self._branches, self._steps, -1).sum(1)
        self._both = np.concatenate([np.zeros_like(both[:, :1]), both.cumsum(1)], axis=1)
        self._moved = np.concatenate([[0.0], outputs.effects.cumsum()])

    def left(self, nodes: NDArray[np.intp], start: NDArray[np.intp], end: NDArray[np.intp]) -> Array:
        """(rows, samples) squared norm of what outputs at `nodes` leave of the effects from `start` to before `end`.

        The weights are those with the least sum over the samples, one for each branch and node, the newest node first.
        """
        count = nodes.shape[1]
        places = np.concatenate([nodes + self._steps * branch for branch in range(self._branches)], axis=1)
        # Seen from the newest output, as the fit of weights sees them.
        seen = np.kron(np.eye(self._branches), np.eye(count) - np.outer(np.arange(count) > 0, np.arange(count) == 0))
        products = seen @ self._products[:, places[:, :, None], places[:, None, :]] @ seen.T
        towards = (self._towards[:, places, end[:, None]] - self._towards[:, places, start[:, None]]) @ seen.T
        size = (self._both[:, end, end] - self._both[:, start, end]) - (
            self._both[:, end, start] - self._both[:, start, start]
        )
        known = np.zeros(places.shape)
        known[:, ::count] = (self._moved[end] - self._moved[start])[:, None]
        total = products.sum(0)
        trace = np.trace(total, axis1=1, axis2=2)[:, None, None]
        rest = towards.sum(0) - (total @ known[:, :, None])[..., 0]
        found = np.linalg.solve(total + (RIDGE * trace + 1e-300) * np.eye(places.shape[1]), rest[..., None])[..., 0]
        weights = known + found
        squared = size - 2 * (towards * weights).sum(2) + ((products @ weights[..., None])[..., 0] * weights).sum(2)
        clipped: Array = np.clip(squared, 0.0, None).T
        return clipped
