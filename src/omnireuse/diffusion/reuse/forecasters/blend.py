"""Between holding and extrapolating, by a weight that the last computed step has earned."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnireuse.diffusion.reuse.forecasters.polynomial import PolynomialMemory
from omnireuse.diffusion.reuse.validation import field_error

__all__ = ["Blend"]


@dataclass(frozen=True, kw_only=True)
class Blend:
    """last + w · (polynomial − last), with w fitted to the last known truth.

    A forecast of order ≥ 1 is worth much where the path is smooth and explodes where strong guidance bends it.
    Whenever a step computes, the weight that would have been best is known at no cost:
    w = ⟨truth − last, slope⟩ / ⟨slope, slope⟩ with slope = polynomial − last.
    What it falls short of 1 by is the path's bend, which grows with the distance: over half the distance that it was
    fitted over, half of that is expected. The weight so expected is clamped to [0, 1]. Until the first fit it is 0: the
    order must be earned. Each sample of a batch has a weight of its own, so it gets the same forecast in any company.

    Cost: two reductions a computed step, no host synchronisation (w stays on the device); order + 1 values kept.

    Args:
        order: degree of the polynomial, 1 to 3.
    """

    order: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.order, int) or isinstance(self.order, bool) or not 1 <= self.order <= 3:
            raise field_error(self, "order", "be 1, 2 or 3")

    def start(self) -> _BlendMemory:
        """An empty memory."""
        return _BlendMemory(self.order)


class _BlendMemory:
    def __init__(self, order: int) -> None:
        self._path = PolynomialMemory(order)
        self._shortfall: torch.Tensor | None = None
        """1 − w of each sample, 0 at least."""
        self._over = 1.0
        """The distance over which it was fitted."""

    @property
    def primed(self) -> bool:
        return self._path.primed

    def observe(self, at: float, value: torch.Tensor) -> None:
        if self._path.known_order >= 1 and at != self._path.last_at:
            slope = _rows(self._path.predict(at) - self._path.last)
            change = _rows(value - self._path.last)
            # 0/0 where the forecast stood still: nothing to follow.
            fitted = (change * slope).sum(1) / slope.square().sum(1)
            shortfall = (1 - torch.nan_to_num(fitted, nan=0.0)).clamp_min(0.0)
            self._shortfall = shortfall.reshape(-1, *(1,) * (value.ndim - 1))
            self._over = abs(at - self._path.last_at)
        self._path.observe(at, value)

    def predict(self, at: float) -> torch.Tensor:
        if self._shortfall is None:
            return self._path.last
        distance = abs(at - self._path.last_at) / self._over
        weight = (1 - self._shortfall * distance).clamp_min(0.0).to(self._path.last.dtype)
        return torch.lerp(self._path.last, self._path.predict(at), weight)

    @property
    def kept_bytes(self) -> int:
        return self._path.kept_bytes


def _rows(value: torch.Tensor) -> torch.Tensor:
    return value.float().reshape(value.shape[0] if value.ndim > 1 else 1, -1)
