"""Compute every step: the policy that must be bit-equal to no reuse at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from omnireuse.diffusion.reuse.policy import StepView

__all__ = ["Never"]


@dataclass(frozen=True, kw_only=True)
class Never:
    """Never reuse. Events and counters still run, which makes it the reference for every comparison."""

    needs_drift: ClassVar[bool] = False
    needs_error: ClassVar[bool] = False

    def start(self) -> None:
        """No state."""
        return

    def wants_reuse(self, state: None, view: StepView) -> bool:
        """Always False."""
        return False

    def after(self, state: None, view: StepView, reused: bool) -> None:
        """No state."""
        return
