"""A forecast between holding and extrapolating, weighted by what the last computed step has shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch

from omnireuse.base.validation import field_error, is_number
from omnireuse.forecasters.base import Combination, Forecaster, PolynomialMemory, check_order, lagrange_weights
from omnireuse.forecasters.gap import Gap

__all__ = ["Blend", "BlendMemory"]

EXPONENT = 1.5
"""`Blend.exponent` for x0. Where the output is straight in noise, x0 is straight in noise²; 1.5 is halfway to noise
itself (``python -m bench few_steps``)."""
DAMPING = 0.75
"""A correction counts as the noise that is left of the gap's to this power: a forecast leaves the latents beside the
path, and the next velocity pulls them back; what of it is pull and not path grows with the fall of the noise."""
FEW, MISSED = 0.4, torch.finfo(torch.float32).max
"""`Blend.holds_misses` below this share of computed steps (``python -m bench harm``), and the shortfall of a miss."""
FADES = 0.8
"""What is left of a miss at the next computed step: gaps that were held leave the latents near the path, where a line
looks right that has just missed everything."""


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
            move the latents to the result. In region "step", where the schedule, the noise and the scheduler's step are
            known (`NoiseLevel.step`). Velocities are remembered for it in place of x0 where `NoiseLevel.flow_scale` is
            known and no prediction target was asked for; they are interpolated by the polynomial through all known
            values, x0 by a line. None is True where it is possible; False remembers x0 in any case.
        holds_misses: hold the next gap, and correct nothing, where the polynomial or the last value missed the truth by
            as much as the truth itself; the shortfall is divided by what is left to that, from half of the truth on. A
            miss counts four fifths at the next computed step, and so on, until a larger one takes its place. None is
            True where fewer than two fifths of the steps compute.
        exponent: polynomials and distances are in noise^exponent, in [0.5, 3]. None is 1.5 for x0 in runs whose
            schedule and noise are known, and 1 elsewhere.

    Raises:
        ConfigError: `order` or `exponent` out of range, or `corrects` or `holds_misses` is neither a bool nor None.
    """

    order: int = 1
    corrects: bool | None = None
    holds_misses: bool | None = None
    exponent: float | None = None

    def __post_init__(self) -> None:
        check_order(self)
        for name in ("corrects", "holds_misses"):
            if not isinstance(getattr(self, name), (bool, type(None))):
                raise field_error(self, name, "be True, False or None")
        if self.exponent is not None and not (is_number(self.exponent) and 0.5 <= self.exponent <= 3):
            raise field_error(self, "exponent", "be a number in [0.5, 3] or None")

    @property
    def regions(self) -> tuple[str, ...] | None:
        return ("step",) if self.corrects else None

    def uncorrected(self) -> Blend:
        return replace(self, corrects=False) if self.corrects is None else self

    def for_run(self, total: int, computed: tuple[int, ...], noises: tuple[float, ...] | None, target: str) -> Blend:
        is_x0 = noises is not None and target == "x0"
        exponent = EXPONENT if is_x0 and self.exponent is None else self.exponent
        corrects = is_x0 or target == "velocity" if self.corrects is None else self.corrects
        holds = len(computed) < FEW * total if self.holds_misses is None else self.holds_misses
        return replace(self, corrects=corrects, holds_misses=holds, exponent=exponent)

    def start(self, branch: int = 0) -> BlendMemory:
        careful = CarefulMemory if self.corrects else BlendMemory
        memory = DoubtingMemory if self.holds_misses else careful
        return memory(self.order, exponent=self.exponent or 1.0)


def _rows(value: torch.Tensor) -> torch.Tensor:
    """One row for each sample, in float32; a value of one dimension is one sample."""
    return value.float().reshape(value.shape[0] if value.ndim > 1 else 1, -1)


def _shown(last: torch.Tensor, forecast: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Of each row 1 − w, at least 0, and the greater miss of both as a share of the value, (2, rows)."""
    slope, change = _rows(forecast - last), _rows(value - last)
    # 0/0 where the forecast equals the last value: there is no slope to follow.
    fitted = (change * slope).sum(1) / slope.square().sum(1)
    missed = torch.maximum(change.norm(dim=1), (change - slope).norm(dim=1)) / _rows(value).norm(dim=1)
    # 0/0 where nothing was, and is.
    return torch.stack(((1 - torch.nan_to_num(fitted, nan=0.0)).clamp_min(0.0), torch.nan_to_num(missed, nan=0.0)))


class BlendMemory(PolynomialMemory):
    """Holding and the polynomial as candidates, with the evidence of `_shown`."""

    _fits = 1
    """The number of last fits of which the worst counts; before there are as many, the last value is held."""

    def __init__(self, order: int, *, exponent: float = 1.0) -> None:
        super().__init__(order, None if exponent == 1 else partial(_weights_in_power, exponent))
        self._exponent = exponent
        self._evidence: tuple[torch.Tensor, ...] = ()
        """Of the last fits: shape (1, B), or (2, B) where misses count, on the values' device."""
        self._over = 1.0  # The distance over which the last was measured.

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        self.remember(coordinate, value, self.evidence_at(coordinate, value))

    def evidence_at(self, coordinate: float, value: torch.Tensor) -> torch.Tensor | None:
        learns = self._learns_at(coordinate)
        return _shown(self.last, super().predict(coordinate), value) if learns else None

    @staticmethod
    def evidence_of(forecasts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        hold, line = (each.flatten(0, 1) for each in forecasts.unbind(1))
        return _shown(hold, line, values.flatten(0, 1)).reshape(2, *values.shape[:2]).movedim(1, 0)

    def remember(self, coordinate: float, value: torch.Tensor, evidence: torch.Tensor | None) -> None:
        if evidence is not None:
            self._evidence = (*self._evidence, self._learnt(evidence))[-self._fits :]
            self._over = self._way(coordinate)
        super().observe(coordinate, value)

    def _learnt(self, evidence: torch.Tensor) -> torch.Tensor:
        """What of new evidence is kept."""
        return evidence[:1]

    def predict(self, coordinate: float) -> torch.Tensor:
        last = self.last
        if len(self._evidence) < self._fits:
            return last
        shortfall = reduce(torch.maximum, map(_believed, self._evidence)).reshape(-1, *(1,) * (last.ndim - 1))
        weight = _expected(shortfall, self._distance(coordinate)).to(last.dtype)
        return torch.lerp(last, super().predict(coordinate), weight)

    def candidates(self, coordinate: float) -> Combination | None:
        table = [self._hold(), self.weights(coordinate)]
        return Combination(values=self.values, table=table) if self._learns_at(coordinate) else None

    def combination(self, coordinate: float) -> Combination | None:
        if len(self._evidence) < self._fits:
            return Combination(values=self.values, table=[self._hold()])
        table, distance = [self._hold(), self.weights(coordinate)], self._distance(coordinate)
        return Combination(values=self.values, table=table, evidence=self._evidence, distance=distance, mix=_mix)

    def _learns_at(self, coordinate: float) -> bool:
        return len(self._nodes) >= 2 and coordinate != self.last_coordinate

    def _way(self, coordinate: float) -> float:
        """Distance of the coordinate from the last value's."""
        last, power = self.last_coordinate, self._exponent
        # Coordinates of step numbers and unknown noise may be negative.
        return abs(coordinate - last) if power == 1 else float(abs(coordinate**power - last**power))

    def _distance(self, coordinate: float) -> float:
        return self._way(coordinate) / self._over

    def _hold(self) -> list[float]:
        return [0.0] * (len(self._nodes) - 1) + [1.0]

    def correct_interval(
        self, gap: Gap, coordinate: float, value: torch.Tensor, evidence: torch.Tensor | None
    ) -> Combination | None:
        """The gap's correction of the latents: their path with interpolated values, less that of the forecasts."""
        shown = self._evidence if evidence is None else (*self._evidence, self._learnt(evidence))
        if evidence is None or len(shown) < self._fits:
            return super().correct_interval(gap, coordinate, value, evidence)
        old, held, nodes = self.values, self._hold(), [*(node for node, _ in self._nodes), coordinate]
        skipped = 0 if gap.target == "velocity" else len(nodes) - 2
        between = [[*[0.0] * skipped, *self._weights(nodes[skipped:], at)] for at in gap.coordinates]
        gain = gap.gain * gap.left**DAMPING
        moves = [sum(s * row[k] for s, row in zip(gap.shares, between, strict=True)) for k in range(len(nodes))]
        stays = [*(sum(gap.shares) * weight for weight in held), 0.0]
        table = [[0.0] * len(old) + [1.0], [gain * (a - b) for a, b in zip(moves, stays, strict=True)]]
        distances: list[float] = []
        # Before there was enough evidence the gap's forecasts were the last value.
        if len(shown) > self._fits:
            for at, share in zip(gap.coordinates, gap.shares, strict=True):
                slope = [weight - hold for weight, hold in zip(self.weights(at), held, strict=True)]
                table.append([*(-gain * share * each for each in slope), 0.0])
                distances.append(self._distance(at))
        self.remember(coordinate, value, evidence)
        return Combination(values=[*old, value], table=table, evidence=shown, distance=distances, mix=_corrected)


class CarefulMemory(BlendMemory):
    """The same, of a run that is corrected. One fit may be luck."""

    _fits = 2


class DoubtingMemory(BlendMemory):
    """The same, of a run that holds misses: the worst so far counts, and fades."""

    def _learnt(self, evidence: torch.Tensor) -> torch.Tensor:
        if not self._evidence:
            return evidence
        return torch.stack((evidence[0], torch.maximum(evidence[1], FADES * self._evidence[-1][1])))


def _believed(evidence: torch.Tensor) -> torch.Tensor:
    """The shortfall of each sample, (…, B), of evidence (…, 1 or 2, B)."""
    shortfall, *missed = evidence.unbind(-2)
    # 0/0 where a line that missed everything had the right direction.
    return (shortfall / (2 - 2 * missed[0]).clamp(0, 1)).nan_to_num(nan=MISSED) if missed else shortfall


def _expected(shortfall: torch.Tensor, distance: torch.Tensor | float) -> torch.Tensor:
    """The weight of the slope."""
    return (1 - shortfall * distance).clamp_min(0.0)


def _mix(evidence: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """The shares of holding and of the polynomial."""
    weight = _expected(_believed(evidence).amax(1), distances[:, None])
    return torch.stack((1 - weight, weight), dim=1)


def _corrected(evidence: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
    """The shares of the value, of the interpolation and of each forecast that was made.

    The gap is corrected in full where the line was at least as close as the last value, which is a weight of ½.
    """
    shown = _believed(evidence)
    if not distances.shape[1]:
        corrects = (2 - 2 * shown.amax(1, keepdim=True)).clamp(0, 1)
        return torch.cat((torch.ones_like(corrects), corrects), dim=1)
    corrects = (2 - 2 * shown[:, 1:].amax(1, keepdim=True)).clamp(0, 1)
    forecasts = _expected(shown[:, :-1].amax(1, keepdim=True), distances[:, :, None])
    return torch.cat((torch.ones_like(corrects), corrects, corrects * forecasts), dim=1)


def _weights_in_power(exponent: float, nodes: Sequence[float], coordinate: float) -> list[float]:
    return lagrange_weights([node**exponent for node in nodes], coordinate**exponent)
