"""Compute every step: the policy that must be bit-equal to no reuse at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnireuse.diffusion.reuse.policy import Policy, StepView

__all__ = ["Never"]


@dataclass(frozen=True, kw_only=True)
class Never(Policy):
    """Never reuse. Events and counters still run, which makes it the reference for every comparison."""

    asks_for_reuse: ClassVar[bool] = False

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        """Every step."""
        return frozenset(range(total))

    def wants_reuse(self, state: None, view: StepView) -> bool:
        """Always False."""
        return False
