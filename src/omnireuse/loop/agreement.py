"""One decision for several ranks: they add up their measurements, or follow the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from omnireuse.base.validation import in_own_words

__all__ = ["Agreement"]

T = TypeVar("T")


class Agreement:
    """One ratio, equal on all ranks, from a measured pair of numerator and denominator on each.

    Ranks that share a forward pass (sequence or tensor parallel) must all compute or all reuse, or the next collective
    of the model deadlocks.

    Args:
        group: the process group whose ranks share the forward's collectives, or None for a single rank. The world is
            no default: replicas that serve other requests would wait for each other.

    Cost: one all-reduce of two floats and one host synchronisation a call; without a group the synchronisation only.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    @property
    def is_alone(self) -> bool:
        """True if no other rank takes part."""
        return self._group is None

    @property
    def is_first(self) -> bool:
        """True if this rank decides for the others, as it does alone."""
        return self._group is None or dist.get_rank(self._group) == 0

    def ratio(self, pair: torch.Tensor) -> float:
        """numerator / denominator over all ranks; 0/0 is 0, and any other division by 0 is inf."""
        if self._group is not None:
            pair = pair.clone()
            dist.all_reduce(pair, group=self._group)
        numerator, denominator = pair.tolist()
        if denominator == 0.0:
            return 0.0 if numerator == 0.0 else float("inf")
        return float(numerator / denominator)

    def of_first(self, make: Callable[[], T]) -> T:
        """The first rank's value, or its error, on all ranks. The other ranks do not compute it."""
        if self._group is None:
            return make()
        held: list[Any] = [None, None]
        try:
            held[0] = make() if self.is_first else None
        except Exception as error:  # the others wait for an answer
            held[1] = in_own_words(error)
        dist.broadcast_object_list(held, src=dist.get_global_rank(self._group, 0), group=self._group)
        if held[1] is not None:
            raise held[1]
        return cast(T, held[0])

    def of_each(self, make: Callable[[], T]) -> T:
        """The value that this rank makes, or on all ranks the error of the first rank that has one."""
        if self._group is None:
            return make()
        made, failure = list[T](), None
        try:
            made.append(make())
        except Exception as error:  # the others must not go on without this rank
            failure = in_own_words(error)
        if (failure := self.of_any(failure)) is not None:
            raise failure
        return made[0]

    def of_any(self, value: T | None) -> T | None:
        """The value of the first rank that has one, on all ranks; None if none has."""
        if self._group is None:
            return value
        held: list[T | None] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(held, value, group=self._group)
        return next((each for each in held if each is not None), None)
