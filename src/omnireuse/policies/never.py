"""Compute every step: the policy that must be bit-equal to no reuse at all."""

from __future__ import annotations

from dataclasses import dataclass

from omnireuse.policies.base import Policy, StepView

__all__ = ["Never"]


@dataclass(frozen=True, kw_only=True)
class Never(Policy):
    """Never reuse. Events and counters still run, so this is the reference for every comparison."""

    @property
    def expects_reuse(self) -> bool:
        return False

    def schedule(self, total: int, noises: tuple[float, ...] | None = None) -> frozenset[int]:
        return frozenset(range(total))

    def wants_reuse(self, state: None, view: StepView) -> bool:
        return False
