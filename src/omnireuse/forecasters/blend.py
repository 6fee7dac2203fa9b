"""A forecast between holding and extrapolating, weighted by what the last computed step has shown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated

import torch

from omnireuse.base.validation import Order, check_fields, finite
from omnireuse.forecasters.base import Forecaster, PolynomialMemory, combine, lagrange_weights
from omnireuse.forecasters.gap import Gap

__all__ = ["Blend", "BlendMemory"]

EXPONENT = 1.5
"""`Blend.exponent` for x0. If the output is straight in noise, x0 is straight in noise²; 1.5 is halfway to noise
itself (``python -m bench few_steps``)."""
DAMPING = 0.75
"""A correction is multiplied by the share of noise that is left after the gap, to this power: the next velocity also
pulls latents back that a forecast has left beside the path, and more so the more the noise has fallen."""
FEW, MISSED = 0.4, torch.finfo(torch.float32).max
"""`Blend.holds_misses` below this share of computed steps (``python -m bench harm``), and the shortfall of a miss."""
FADES = 0.8
"""Factor on a miss at each later computed step. After a gap that was held, the latents are near the path, and a line
looks right although it has just missed."""


@dataclass(frozen=True, kw_only=True)
class Blend(Forecaster):
    """last + w · (polynomial − last), with w fitted to the last known truth.

    Extrapolation gains much where the path is smooth and explodes where strong guidance bends it. Each computed step
    gives the best weight for the forecast of that step, w = ⟨truth − last, slope⟩ / ⟨slope, slope⟩ with
    slope = polynomial − last. Its shortfall 1 − w is the path's bend, which grows with the distance: half of it is
    expected over half the distance. The expected weight is clamped to [0, 1], and is 0 until the first fit. Each sample
    of a batch has a weight of its own.

    Cost: up to six reductions a computed step, no host synchronisation (w stays on the device); order + 1 values kept.

    Args:
        order: degree of the polynomial, 1 to 3.
        corrects: at the first computed step after reused ones, integrate those again with the value interpolated, and
            move the latents to the result. In region "step", if the schedule, the noise and the scheduler's step are
            known (`NoiseLevel.step`). Velocities are remembered for it in place of x0 if `NoiseLevel.flow_scale` is
            known and no prediction target was asked for; they are interpolated by the polynomial through all known
            values, x0 by a line. None is True if it is possible; False remembers x0 in any case.
        holds_misses: hold the next gap, and correct nothing, if the polynomial or the last value missed the truth by
            as much as the truth itself; the shortfall is divided by what is left to that, from half of the truth on. A
            miss counts four fifths at the next computed step, and so on, until a larger one takes its place. None is
            True if fewer than two fifths of the steps are computed.
        exponent: polynomials and distances are in noise^exponent, in [0.5, 3]. None is 1.5 for x0 in runs whose
            schedule and noise are known, and 1 elsewhere.

    Raises:
        ConfigError: `order` or `exponent` out of range, or `corrects` or `holds_misses` is neither a bool nor None.
    """

    order: Order = 1
    corrects: bool | None = None
    holds_misses: bool | None = None
    exponent: Annotated[float, finite("be from 0.5 to 3", lambda x: 0.5 <= x <= 3)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def regions(self) -> tuple[str, ...] | None:
        return ("step",) if self.corrects else None

    def for_run(self, total: int, computed: tuple[int, ...], noises: tuple[float, ...] | None, target: str) -> Blend:
        is_x0 = noises is not None and target == "x0"
        exponent = EXPONENT if is_x0 and self.exponent is None else self.exponent
        holds = len(computed) < FEW * total if self.holds_misses is None else self.holds_misses
        return replace(self, holds_misses=holds, exponent=exponent)

    def start(self, branch: int = 0) -> BlendMemory:
        careful = CarefulMemory if self.corrects else BlendMemory
        memory = DoubtingMemory if self.holds_misses else careful
        return memory(self.order, exponent=self.exponent or 1.0)


def _rows(value: torch.Tensor) -> torch.Tensor:
    """One row for each sample, in float32; a value of one dimension is one sample."""
    return value.float().reshape(value.shape[0] if value.ndim > 1 else 1, -1)


class BlendMemory(PolynomialMemory):
    """Between holding and the polynomial. The evidence is 1 − w of each sample, at least 0, or `MISSED`."""

    _fits = 1
    """The number of last fits of which the worst counts; before there are as many, the last value is held."""

    def __init__(self, order: int, *, exponent: float = 1.0) -> None:
        super().__init__(order)
        self._exponent = exponent
        """Nodes are at coordinate^exponent."""
        self._evidence: tuple[torch.Tensor, ...] = ()
        """Of the last fits: shape (B,), on the values' device."""
        self._over = 1.0  # The distance over which the last was measured.

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        place = coordinate**self._exponent
        if len(self._nodes) >= 2 and place != self.last_coordinate:
            evidence = self._shortfall(super().predict(place), value)
            self._evidence, self._over = (*self._evidence, evidence)[-self._fits :], abs(place - self.last_coordinate)
        super().observe(place, value)

    def predict(self, coordinate: float) -> torch.Tensor:
        at, last = self._nodes[-1]
        if len(self._evidence) < self._fits:
            return last
        place = coordinate**self._exponent
        weight = (1 - reduce(torch.maximum, self._evidence) * (abs(place - at) / self._over)).clamp_min(0.0)
        weight = weight.to(last.dtype).reshape(-1, *(1,) * (last.ndim - 1))
        return torch.lerp(last, super().predict(place), weight)

    def correct_interval(self, gap: Gap, coordinate: float, value: torch.Tensor) -> torch.Tensor | None:
        """Correct the latents for a gap: their path with interpolated values, less that of the forecasts.

        The gap is corrected in full if the line was at least as close as the last value, which is a weight of ½.
        """
        before, forecasts = self._evidence, [self.predict(at).float() for at in gap.coordinates]
        values, nodes = [*self.values, value], [*(node for node, _ in self._nodes), coordinate**self._exponent]
        self.observe(coordinate, value)
        if before is self._evidence or len(self._evidence) < self._fits:
            return None
        skipped = 0 if gap.target == "velocity" else len(nodes) - 2
        between = [lagrange_weights(nodes[skipped:], at**self._exponent) for at in gap.coordinates]
        path = [sum(s * row[k] for s, row in zip(gap.shares, between, strict=True)) for k in range(len(between[0]))]
        moved = combine(path, [each.float() for each in values[skipped:]]).sub_(combine(gap.shares, forecasts))
        gain = gap.gain * gap.left**DAMPING * (2 - 2 * self._worst()).clamp(0, 1)
        return moved.mul_(_for_rows(gain, moved)).add_(value)

    def _shortfall(self, forecast: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """1 − w of each row, at least 0."""
        slope, change = _rows(forecast - self.last), _rows(value - self.last)
        # 0/0 if the forecast equals the last value: there is no slope to follow.
        fitted = (change * slope).sum(1) / slope.square().sum(1)
        return (1 - torch.nan_to_num(fitted, nan=0.0)).clamp_min(0.0)

    def _worst(self) -> torch.Tensor:
        return reduce(torch.maximum, self._evidence)


class CarefulMemory(BlendMemory):
    """The same, of a run that is corrected. One fit may be luck."""

    _fits = 2


class DoubtingMemory(BlendMemory):
    """The same, of a run that holds misses: the worst so far counts, and fades."""

    def __init__(self, order: int, *, exponent: float = 1.0) -> None:
        super().__init__(order, exponent=exponent)
        self._missed: torch.Tensor | None = None
        """The greater miss of both as a share of the value, (B,)."""

    def _shortfall(self, forecast: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        both = torch.stack([_rows(value - each).norm(dim=1) for each in (self.last, forecast)])
        # 0/0 if nothing was, and is.
        missed = torch.nan_to_num(both.amax(0) / _rows(value).norm(dim=1), nan=0.0)
        self._missed = missed if self._missed is None else torch.maximum(missed, FADES * self._missed)
        # 0/0 if a line that missed everything had the right direction.
        trust = (2 - 2 * self._missed).clamp(0, 1)
        return (super()._shortfall(forecast, value) / trust).nan_to_num(nan=MISSED)


def _for_rows(scale: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A factor (B,) in the shape that multiplies each row of a value."""
    return scale.to(value.dtype).reshape(-1, *(1,) * (value.ndim - 1))
