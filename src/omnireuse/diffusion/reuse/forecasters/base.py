"""What a forecaster is: what stands in for a value that was not computed.

A forecaster is a frozen config whose `start()` gives the memory of one branch in one run.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

__all__ = ["BranchForecaster", "Corrector", "Forecaster", "Memory"]


@runtime_checkable
class Memory(Protocol):
    """The values of past computed steps, and what they foretell."""

    @property
    def primed(self) -> bool:
        """Whether enough values were observed to predict at all."""

    def observe(self, at: float, value: torch.Tensor) -> None:
        """Remember a computed value at coordinate `at`. The tensor is kept as it is: hand over one nobody writes to."""

    def predict(self, at: float) -> torch.Tensor:
        """The expected value at coordinate `at`. May be a kept tensor itself: do not write to it."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage held."""


@runtime_checkable
class Corrector(Protocol):
    """A memory that has a say at computed steps too, once the truth has shown where its forecasts went wrong."""

    def corrected(self, at: float) -> torch.Tensor | None:
        """What to hand on in place of the value just observed at `at`; None for that value itself."""


@runtime_checkable
class Forecaster(Protocol):
    """Starts one memory per value, branch and run."""

    def start(self) -> Memory:
        """An empty memory."""


@runtime_checkable
class BranchForecaster(Protocol):
    """A forecaster to which the branches of guidance are not alike."""

    @property
    def branches(self) -> int:
        """How many it knows; 1 where it takes all for alike."""

    def start_branch(self, branch: int) -> Memory:
        """An empty memory for the branch that is called in this place of a step."""
