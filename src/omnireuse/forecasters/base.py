"""The protocol of a forecaster: it gives the value of a step that is not computed.

A forecaster is a frozen config. Its `start()` gives the memory of one branch in one run. Coordinates are noise levels
or step indices (`Strategy.axis`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from omnireuse.forecasters.gap import Gap
from omnireuse.stores.trees import storage_bytes

__all__ = [
    "Forecaster",
    "Memory",
    "PolynomialMemory",
    "combine",
    "held_bytes",
    "lagrange_weights",
    "transformed",
]

Transform = Callable[[torch.Tensor], torch.Tensor]


def combine(weights: Sequence[float], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Σ wᵢ · valueᵢ over the first values, accumulated in float32 at least; a new tensor in the values' dtype."""
    dtype = torch.promote_types(values[0].dtype, torch.float32)
    total = values[0].to(dtype) * weights[0]
    for weight, value in zip(weights[1:], values[1:], strict=False):
        total.add_(value.to(dtype), alpha=weight)
    return total.to(values[0].dtype)


class Memory(ABC):
    """The values of past computed steps, and the forecast made of them.

    `primed`, `observe` and `predict` must be written. The other methods are for forecasters that correct.
    """

    @property
    @abstractmethod
    def primed(self) -> bool:
        """True if enough values were observed to predict."""

    @abstractmethod
    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        """Remember a computed value. The tensor is kept as it is, so nobody may write to it."""

    @abstractmethod
    def predict(self, coordinate: float) -> torch.Tensor:
        """The expected value. May be a kept tensor itself: do not write to it."""

    def heading(self, value: torch.Tensor) -> torch.Tensor:
        """The cosine of the change to this value and the change before it; NaN if that is not known."""
        return torch.full((), torch.nan, device=value.device)

    def correction(self, coordinate: float) -> torch.Tensor | None:
        """What replaces the value just observed at `coordinate`; None if that value is used as it is."""
        return None

    def correct_interval(self, gap: Gap, coordinate: float, value: torch.Tensor) -> torch.Tensor | None:
        """`observe` for the first value after reused steps, if the scheduler's step is known.

        Args:
            gap: the reused steps.
            coordinate: of the value.
            value: the computed x0 or velocity.

        Returns:
            What replaces the value; None for this value itself.
        """
        self.observe(coordinate, value)
        return None

    def transformed(self, change: Transform) -> Memory:
        """An independent copy in which every tensor is `change(tensor)`."""
        twin = copy.copy(self)
        vars(twin).update({name: transformed(value, change) for name, value in vars(self).items()})
        return twin

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage held."""
        return held_bytes([self])


def held_bytes(holders: Iterable[Any]) -> int:
    """Bytes of the storages behind all tensors of objects with `transformed`; each storage counts once."""
    held: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        return tensor

    for holder in holders:
        holder.transformed(note)
    return storage_bytes(held)


def transformed(value: object, change: Transform) -> Any:
    """A copy of a value with `change(tensor)` in place of each tensor in its containers and memories."""

    def changed(leaf: object) -> Any:
        if isinstance(leaf, Memory):
            return leaf.transformed(change)
        return change(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(changed, value)


class Forecaster(ABC):
    """A frozen config that starts memories. Only `start` must be written."""

    order: int = 0
    """Degree of its polynomial: its error grows with the distance to the power order + 1."""
    prediction_target: ClassVar[str | None] = None
    """The only prediction target that it forecasts; None takes the region's default."""
    corrects: bool | None = False
    """True if `Memory.correct_interval` corrects what forecasts did to the latents; then it serves region "step" only.
    None leaves it to the run; it is then a field, which the run sets."""

    @property
    def regions(self) -> tuple[str, ...] | None:
        """The regions that it serves; None for all."""
        return None

    @property
    def branches(self) -> int:
        """The number of guidance branches with a memory of their own kind; 1 if all are alike."""
        return 1

    def for_run(
        self, total: int, computed: tuple[int, ...], noises: tuple[float, ...] | None, target: str
    ) -> Forecaster:
        """The forecaster of `target` for a run of `total` steps that computes these; `noises` is the noise
        fraction at each step, None if it is not known or not what distance is measured in."""
        return self

    def after_calls(self, step: int, calls: int) -> Forecaster:
        """The forecaster of the steps after one with so many calls; another one if it cannot serve as many."""
        return self

    @abstractmethod
    def start(self, branch: int = 0) -> Memory:
        """An empty memory for the branch that is called in this place of a step, < `branches` if that is above 1."""


class PolynomialMemory(Memory):
    """The polynomial through the last `order` + 1 values at their true spacing.

    Args:
        order: degree of the polynomial; 0 holds the last value.
    """

    def __init__(self, order: int = 0) -> None:
        self._nodes: deque[tuple[float, torch.Tensor]] = deque(maxlen=order + 1)
        """Coordinates and values, oldest first."""

    @property
    def primed(self) -> bool:
        return bool(self._nodes)

    @property
    def last(self) -> torch.Tensor:
        """The last computed value."""
        return self._nodes[-1][1]

    @property
    def last_coordinate(self) -> float:
        """The coordinate of the last computed value."""
        return self._nodes[-1][0]

    @property
    def values(self) -> list[torch.Tensor]:
        """The known values, oldest first."""
        return [value for _, value in self._nodes]

    def heading(self, value: torch.Tensor) -> torch.Tensor:
        if len(self._nodes) < 2:
            return super().heading(value)
        before, now = torch.stack([each.float().flatten() for each in (*self.values[-2:], value)]).diff(dim=0)
        return torch.cosine_similarity(before, now, dim=0)

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        """Remember a value; a second value at the same coordinate replaces the first."""
        if self._nodes and self._nodes[-1][0] == coordinate:
            self._nodes.pop()
        self._nodes.append((coordinate, value))

    def predict(self, coordinate: float) -> torch.Tensor:
        if len(self._nodes) == 1:
            return self._nodes[-1][1]
        nodes, values = zip(*self._nodes, strict=True)
        weights = lagrange_weights(nodes, coordinate)
        return combine([weights[-1], *weights[:-1]], [values[-1], *values[:-1]])


def lagrange_weights(nodes: Sequence[float], coordinate: float) -> list[float]:
    """The weight of each node's value in the interpolating polynomial at `coordinate`; they sum to one."""
    weights = []
    for i, here in enumerate(nodes):
        weight = 1.0
        for j, other in enumerate(nodes):
            if i != j:
                weight *= (coordinate - other) / (here - other)
        weights.append(weight)
    return weights
