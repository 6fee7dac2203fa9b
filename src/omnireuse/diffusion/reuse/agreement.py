"""How several ranks come to one decision: they add up what they measured."""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["Agreement"]


class Agreement:
    """Turns a measured (numerator, denominator) pair into one ratio that is equal on all ranks.

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
        """Whether no other rank takes part."""
        return self._group is None

    def ratio(self, pair: torch.Tensor) -> float:
        """numerator / denominator over all ranks; 0/0 is 0, and any other division by 0 is inf."""
        if self._group is not None:
            pair = pair.clone()
            dist.all_reduce(pair, group=self._group)
        numerator, denominator = pair.tolist()
        if denominator == 0.0:
            return 0.0 if numerator == 0.0 else float("inf")
        return float(numerator / denominator)
