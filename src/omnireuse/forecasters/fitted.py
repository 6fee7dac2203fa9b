"""Weights that were fitted to a pipeline's own runs, for one schedule."""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from omnireuse.base.validation import field_error
from omnireuse.forecasters.base import Forecaster, Memory, combine
from omnireuse.forecasters.blend import Blend
from omnireuse.policies.base import SAME_NOISE

__all__ = ["Fitted"]

logger = logging.getLogger("omnireuse")

SAME_COORDINATE = 1e-4
"""Greatest distance of coordinates of the same steps; steps of a run of 1,000 lie ten times as far apart."""


@dataclass(frozen=True, kw_only=True)
class Fitted(Forecaster):
    """Each step uses a weighted sum of the last computed outputs, the newest first.

    The weights come from `omnireuse.calibrate`. Computed steps may have weights too: the first output that is computed
    after a gap shows the error of the forecasts over the gap, and its weights correct that, as the corrector of a
    multistep solver does. Each branch of guidance may have its own set, for region "call". One set for all branches
    commutes with guidance, so regions "step" and "call" then give the same. On a run of another number of steps, or at
    other noise levels, `Blend` forecasts. So it does, with a warning, if the weights do not fit on the way (other
    branches, a step that a guard made compute).

    Args:
        coordinates: of each step of the runs that the weights were fitted on.
        weights: of each branch, in the order of its calls, and each step; empty if the computed output is used as
            it is. One set serves all branches.
        computed: the steps that were computed in these runs.

    Raises:
        ConfigError: different lengths, steps that do not exist, or a step whose outputs are fewer than its weights.
    """

    coordinates: tuple[float, ...]
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    computed: tuple[int, ...]

    prediction_target: ClassVar[str | None] = "output"

    def __post_init__(self) -> None:
        total = len(self.coordinates)
        if not self.weights:
            raise field_error(self, "weights", "hold a set for at least one branch")
        for each in self.weights:
            if total != len(each):
                raise field_error(self, "weights", f"be as many as there are steps, {total}", len(each))
        if list(self.computed) != sorted(set(self.computed)) or not set(self.computed) <= set(range(total)):
            raise field_error(self, "computed", f"be steps from 0 to {total - 1} in order")
        for step in range(total):
            known = sum(computed <= step for computed in self.computed)
            for weights in (each[step] for each in self.weights):
                if len(weights) > known or (not weights and step not in self.computed):
                    raise field_error(self, "weights", f"have 1 to {known} entries at step {step}", weights)

    @property
    def regions(self) -> tuple[str, ...]:
        return ("step", "call") if self.branches == 1 else ("call",)

    @property
    def branches(self) -> int:
        return len(self.weights)

    def for_run(
        self, total: int, computed: tuple[int, ...], noises: tuple[float, ...] | None, target: str
    ) -> Forecaster:
        if noises is None or noises == self.coordinates:
            return self
        pairs = zip(noises, self.coordinates, strict=False)
        if total == len(self.coordinates) and all(abs(a - b) <= SAME_NOISE for a, b in pairs):
            return replace(self, coordinates=noises)
        return Blend().for_run(total, computed, noises, target)

    def after_calls(self, step: int, calls: int) -> Forecaster:
        if self.branches in (1, calls):
            return self
        logger.warning(
            "the weights were fitted for %d branches of guidance; step %d has %d calls, so a blend forecasts instead",
            self.branches,
            step,
            calls,
        )
        return Blend()

    def start(self, branch: int = 0) -> _FittedMemory:
        return _FittedMemory(self, self.weights[branch if self.branches > 1 else 0])


class _FittedMemory(Memory):
    def __init__(self, fit: Fitted, weights: tuple[tuple[float, ...], ...]) -> None:
        self._fit = fit
        newest = [[fit.coordinates[at] for at in reversed(fit.computed) if at <= step] for step in range(len(weights))]
        self._steps = [*zip(weights, newest, strict=True)]
        """The weights of each step, and the coordinates of the last computed steps, the newest first."""
        most = max(2, *map(len, weights))
        self._places, self._values = deque[float](maxlen=most), deque[torch.Tensor](maxlen=most)
        """The same of this run, and its outputs."""
        self._fallback = Blend().start()
        self._fits = True

    @property
    def primed(self) -> bool:
        return bool(self._values)

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        self._places.appendleft(coordinate)
        self._values.appendleft(value)
        self._fallback.observe(coordinate, value)

    def predict(self, coordinate: float) -> torch.Tensor:
        found = self._fitted_at(coordinate, computed=False)
        return self._fallback.predict(coordinate) if found is None else found

    def correction(self, coordinate: float) -> torch.Tensor | None:
        return self._fitted_at(coordinate, computed=True)

    def _fitted_at(self, coordinate: float, *, computed: bool) -> torch.Tensor | None:
        """The weighted sum for this step; None if the weights have none for it, or do not fit this run.

        The weights of a computed step take its own output, so the forecast for such a step is the blend's.
        """
        distances = [abs(each - coordinate) for each in self._fit.coordinates]
        step = distances.index(min(distances))
        if distances[step] > SAME_COORDINATE:
            self._give_up()
        weights, places = self._steps[step]
        if not self._fits or not weights or (not computed and step in self._fit.computed):
            return None
        known, count = [*self._places], len(weights)
        if len(known) < count or math.dist(known[:count], places[:count]) > SAME_COORDINATE:
            self._give_up()
            return None
        return combine(weights, [*self._values])

    def _give_up(self) -> None:
        if self._fits:
            logger.warning(
                "the weights were fitted for runs of %d steps of which %s are computed; this run takes other steps, "
                "so a blend forecasts instead",
                len(self._fit.coordinates),
                self._fit.computed,
            )
        self._fits = False
