"""How several ranks come to one decision: they add up what they measured.

Ranks that share a forward pass (sequence or tensor parallel) must all compute or all reuse, or the next collective of
the model deadlocks. The measured pair is summed over exactly that group before anyone looks at it.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["Agreement"]


class Agreement:
    """Turns a measured (numerator, denominator) pair into one ratio that is equal on all ranks.

    Args:
        group: the process group whose ranks share the forward's collectives, or None for a single rank. Never the
            world by
            default: replicas that serve other requests would wait for each other.

    Cost: one all-reduce of two floats and one host synchronisation a call; without a group the synchronisation only.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    @property
    def is_alone(self) -> bool:
        """Whether no other rank takes part."""
        return self._group is None

    def ratio(self, pair: torch.Tensor) -> float:
        """numerator / denominator over all ranks; inf where the denominator is 0 and the numerator is not, 0 where
        both are."""
        if self._group is not None:
            pair = pair.clone()
            dist.all_reduce(pair, group=self._group)
        numerator, denominator = pair.tolist()
        if denominator == 0.0:
            return 0.0 if numerator == 0.0 else float("inf")
        return float(numerator / denominator)
