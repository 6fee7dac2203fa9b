"""How several ranks come to one decision: they add up what they measured.

Ranks that share a forward pass (sequence or tensor parallel) must all compute or all reuse, or the next collective of
the model deadlocks. The measured pair is summed over exactly that group before anyone looks at it.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

__all__ = ["Agreement"]


class Agreement:
    """Turns a measured (numerator, denominator) pair into one ratio that is equal on all ranks.

    Args:
        group: the process group whose ranks share the forward's collectives, or None for a single rank. Never the
            world by
            default: replicas that serve other requests would wait for each other.

    Cost: one all-reduce of two floats a pair and one host synchronisation a call; without a group the latter only.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    @property
    def is_alone(self) -> bool:
        """Whether no other rank takes part."""
        return self._group is None

    def ratio(self, pairs: torch.Tensor) -> float:
        """numerator / denominator over all ranks; inf where the denominator is 0 and the numerator is not, 0 where
        both are. Of several pairs, shape (n, 2), the largest ratio; NaN where one is."""
        if self._group is not None:
            pairs = pairs.clone()
            dist.all_reduce(pairs, group=self._group)
        ratios = [_divided(*pair) for pair in pairs.reshape(-1, 2).tolist()]
        return math.nan if any(map(math.isnan, ratios)) else max(ratios)


def _divided(numerator: float, denominator: float) -> float:
    if denominator == 0.0:
        return 0.0 if numerator == 0.0 else math.inf
    return numerator / denominator
