"""What a forecaster is: what stands in for a value that was not computed.

A forecaster is a frozen config that inherits `Forecaster`. Its `start()` gives the memory of one branch in one run,
which inherits `Memory`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Combination", "Forecaster", "Memory"]

Transform = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Combination:
    """A forecast as a weighted sum of remembered values, so that many requests can be forecast in one operation.

    Attributes:
        values: the remembered values, all of one shape (B, …); one of a single dimension is one sample.
        table: the weights of each candidate forecast, shape (candidates, values), on the host.
        evidence: what chooses between the candidates, on the values' device, its last dimension B; None with one
            candidate.
        distance: how far ahead is forecast, as a multiple of the distance over which the evidence was measured.
        mix: (evidence (R, …, B), distances (R,)) -> share of each candidate, shape (R, candidates, B).
    """

    values: Sequence[torch.Tensor]
    table: Sequence[Sequence[float]]
    evidence: torch.Tensor | None = None
    distance: float = 1.0
    mix: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None


class Memory(ABC):
    """The values of past computed steps, and the forecast made of them."""

    @property
    @abstractmethod
    def primed(self) -> bool:
        """Whether enough values were observed to predict at all."""

    @abstractmethod
    def observe(self, at: float, value: torch.Tensor) -> None:
        """Remember a computed value at coordinate `at`. The tensor is kept as it is: hand over one nobody writes to."""

    @abstractmethod
    def predict(self, at: float) -> torch.Tensor:
        """The expected value at coordinate `at`. May be a kept tensor itself: do not write to it."""

    def corrected(self, at: float) -> torch.Tensor | None:
        """What to hand on in place of the value just observed at `at`; None for that value itself."""
        return None

    def combination(self, at: float) -> Combination | None:
        """The forecast at `at` as a weighted sum; None where it is not one, and requests are forecast one by one."""
        return None

    def correction(self, at: float) -> Combination | None:
        """`corrected` as a weighted sum; None where nothing is corrected."""
        return None

    def candidates(self, at: float) -> Combination | None:
        """The forecasts that a value at `at` is going to be compared with; None where nothing is learnt from it."""
        return None

    @staticmethod
    def evidence_of(forecasts: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """What computed values show about the candidates' forecasts for them.

        Args:
            forecasts: shape (R, candidates, B, F); each value's other dimensions are flattened into F.
            values: shape (R, B, F).

        Returns:
            Shape (R, …, B), float32.
        """
        raise AssertionError("asked only of a memory with candidates")

    def remember(self, at: float, value: torch.Tensor, evidence: torch.Tensor | None) -> None:
        """`observe`, with the evidence measured already; (…, B), or None where there were no candidates."""
        self.observe(at, value)

    def transformed(self, change: Transform) -> Memory:
        """A copy of its own in which every tensor is `change(tensor)`."""
        twin = copy.copy(self)
        vars(twin).update({name: _transformed(value, change) for name, value in vars(self).items()})
        return twin

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage held; what is held twice counts once."""
        held: dict[int, int] = {}

        def weigh(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
            return tensor

        self.transformed(weigh)
        return sum(held.values())


def _transformed(value: Any, change: Transform) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Memory):
        return value.transformed(change)
    if isinstance(value, deque):
        return deque((_transformed(each, change) for each in value), value.maxlen)
    if isinstance(value, (list, tuple)):
        return type(value)(_transformed(each, change) for each in value)
    return value


class Forecaster(ABC):
    """A frozen config that starts memories. Only `start` must be written."""

    order: int = 0
    """Degree of its polynomial: its error grows with the distance to the power order + 1."""

    @property
    def quantity(self) -> str | None:
        """The one quantity that it forecasts; None takes the region's default."""
        return None

    @property
    def regions(self) -> tuple[str, ...] | None:
        """The regions that it serves; None for all."""
        return None

    @property
    def branches(self) -> int:
        """How many branches of guidance it tells apart; 1 where it treats all alike."""
        return 1

    @abstractmethod
    def start(self, branch: int = 0) -> Memory:
        """An empty memory for the branch that is called in this place of a step, < `branches` where that is above 1."""
