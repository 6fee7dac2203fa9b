"""The share of a denoising in which steps may be reused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnireuse.base.validation import is_number
from omnireuse.engines.comfyui.noise import NEAR
from omnireuse.errors import ConfigError

__all__ = ["Span"]


@dataclass(frozen=True, kw_only=True)
class Span:
    """The share of a denoising in which steps may be reused, as ComfyUI's ``start_percent`` and ``end_percent``.

    Args:
        start: reuse begins after this share, in [0, 1).
        end: reuse ends after this share, above `start` and at most 1.
    """

    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        if not (is_number(self.start) and is_number(self.end) and 0 <= self.start < self.end <= 1):
            raise ConfigError(
                f"Omnireuse(start_percent={self.start!r}, end_percent={self.end!r}): start_percent must be at least 0 "
                "and below end_percent, which is at most 1; 0 and 1 allow reuse everywhere"
            )

    @property
    def is_everything(self) -> bool:
        """Whether every step may be reused."""
        return (self.start, self.end) == (0.0, 1.0)

    def to_compute(self, sigmas: Sequence[float], model_sampling: Any) -> frozenset[int]:
        """The steps outside, which compute."""
        if self.is_everything:
            return frozenset()
        first, last = (float(model_sampling.percent_to_sigma(each)) for each in (self.start, self.end))
        first, last = first * (1 + NEAR), last * (1 + NEAR)
        return frozenset(step for step, sigma in enumerate(sigmas) if not last < sigma <= first)
