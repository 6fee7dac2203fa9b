"""Weights that were fitted to a pipeline's own runs, for one schedule."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omnireuse.diffusion.reuse.forecasters.base import Combination, Forecaster, Memory
from omnireuse.diffusion.reuse.forecasters.blend import Blend, BlendMemory
from omnireuse.diffusion.reuse.validation import field_error

__all__ = ["Fitted", "combine"]

logger = logging.getLogger("omnireuse")

SAME_PLACE = 1e-4
"""How far apart two coordinates of one step may lie; steps of a run of 1,000 are ten times as far apart."""


@dataclass(frozen=True, kw_only=True)
class Fitted(Forecaster):
    """What is handed on at a step is a weighted sum of the last computed outputs, the newest first.

    The weights of each step come from `omnireuse.calibrate`. Some belong to computed steps: the first output that is
    computed after a gap tells where the forecasts over the gap went wrong, and its weights make that good before the
    run goes on, as the corrector of a multistep solver does, at no cost. Each branch of guidance may have a set of its
    own, for region "call". One set for all branches commutes with guidance, so regions "step" and "call" hand on the
    same. On a run that takes other steps than they were fitted for (another number of them, another spacing, other
    branches, a step that a guard made compute), `Blend` forecasts instead and says so.

    Args:
        at: coordinate of each step of the runs that they were fitted on, as forecasters see it.
        weights: of each branch, in the order of its calls, and each step; empty where the computed output is handed on
            as it is. One set serves all branches.
        computed: the steps that computed in these runs.

    Raises:
        ConfigError: of different lengths, steps that are not there, or a step whose outputs are fewer than its weights.
    """

    at: tuple[float, ...]
    weights: tuple[tuple[tuple[float, ...], ...], ...]
    computed: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.weights:
            raise field_error(self, "weights", "hold a set for at least one branch")
        for each in self.weights:
            if len(self.at) != len(each):
                raise field_error(self, "weights", f"be as many as there are steps, {len(self.at)}", len(each))
        if list(self.computed) != sorted(set(self.computed)) or not set(self.computed) <= set(range(len(self.at))):
            raise field_error(self, "computed", f"be steps from 0 to {len(self.at) - 1} in order")
        for step in range(len(self.at)):
            known = sum(computed <= step for computed in self.computed)
            for weights in (each[step] for each in self.weights):
                if len(weights) > known or (not weights and step not in self.computed):
                    raise field_error(self, "weights", f"have 1 to {known} entries at step {step}", weights)

    @property
    def quantity(self) -> str:
        """The output: its weights were fitted on that."""
        return "output"

    @property
    def regions(self) -> tuple[str, ...]:
        """Where it can serve."""
        return ("step", "call") if self.branches == 1 else ("call",)

    @property
    def branches(self) -> int:
        """How many branches have weights of their own; 1 where one set serves all."""
        return len(self.weights)

    def start(self, branch: int = 0) -> _FittedMemory:
        """An empty memory for the branch that is called in this place of a step."""
        return _FittedMemory(self, self.weights[branch if self.branches > 1 else 0])


class _FittedMemory(Memory):
    def __init__(self, fit: Fitted, weights: tuple[tuple[float, ...], ...]) -> None:
        self._fit = fit
        self._weights = weights
        self._known: deque[tuple[float, torch.Tensor]] = deque(maxlen=max(2, *map(len, weights)))
        """Coordinates and outputs of the last computed steps, the newest first."""
        self._otherwise = Blend().start()
        self._fits = True

    @property
    def primed(self) -> bool:
        return bool(self._known)

    def observe(self, at: float, value: torch.Tensor) -> None:
        self._known.appendleft((at, value))
        self._otherwise.observe(at, value)

    def predict(self, at: float) -> torch.Tensor:
        weights = self._forecast_weights(at)
        return self._otherwise.predict(at) if weights is None else combine(weights, self._values)

    def corrected(self, at: float) -> torch.Tensor | None:
        """What to hand on at `at`, whose output was observed last; None for that output as it is."""
        weights = self._correction_weights(at)
        return None if weights is None else combine(weights, self._values)

    def combination(self, at: float) -> Combination:
        weights = self._forecast_weights(at)
        return self._otherwise.combination(at) if weights is None else self._weighted(weights)

    def correction(self, at: float) -> Combination | None:
        weights = self._correction_weights(at)
        return None if weights is None else self._weighted(weights)

    def candidates(self, at: float) -> Combination | None:
        return self._otherwise.candidates(at)

    evidence_of = staticmethod(BlendMemory.evidence_of)

    def remember(self, at: float, value: torch.Tensor, evidence: torch.Tensor | None) -> None:
        self._known.appendleft((at, value))
        self._otherwise.remember(at, value, evidence)

    @property
    def _values(self) -> list[torch.Tensor]:
        return [value for _, value in self._known]

    def _weighted(self, weights: Sequence[float]) -> Combination:
        return Combination(values=self._values[: len(weights)], table=[weights])

    def _forecast_weights(self, at: float) -> tuple[float, ...] | None:
        step = self._step(at)
        # Weights of a computed step know its output; what would have been forecast for it is asked of the blend.
        if step is None or step in self._fit.computed or not self._stands_at(step):
            return None
        return self._weights[step]

    def _correction_weights(self, at: float) -> tuple[float, ...] | None:
        step = self._step(at)
        if step is None or not self._weights[step] or not self._stands_at(step):
            return None
        return self._weights[step]

    def _step(self, at: float) -> int | None:
        places = self._fit.at
        step = min(range(len(places)), key=lambda each: abs(places[each] - at))
        if abs(places[step] - at) > SAME_PLACE:
            self._give_up()
        return step if self._fits else None

    def _stands_at(self, step: int) -> bool:
        """Whether the outputs known are those that this step's weights were fitted for."""
        count = len(self._weights[step])
        nodes = [computed for computed in reversed(self._fit.computed) if computed <= step][:count]
        known = list(self._known)[:count]
        fits = len(known) == count and all(
            abs(self._fit.at[node] - at) <= SAME_PLACE for node, (at, _) in zip(nodes, known, strict=True)
        )
        if not fits:
            self._give_up()
        return fits

    def _give_up(self) -> None:
        if self._fits:
            logger.warning(
                "the weights were fitted for runs of %d steps that compute %s; this one takes other steps, so a blend "
                "forecasts instead",
                len(self._fit.at),
                self._fit.computed,
            )
        self._fits = False


def combine(weights: Sequence[float], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Σ wᵢ · valueᵢ over the first values, in float32 at least; a tensor of its own."""
    dtype = torch.promote_types(values[0].dtype, torch.float32)
    total = values[0].to(dtype) * weights[0]
    for weight, value in zip(weights[1:], values[1:], strict=False):
        total.add_(value.to(dtype), alpha=weight)
    return total.to(values[0].dtype)
