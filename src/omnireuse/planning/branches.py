"""The outputs of the branches of guidance, and the share of each in what the scheduler gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["Shares", "branches_of", "copied"]

LARGEST_MISS = 1e-2
"""Share of what the scheduler gets that a weighted sum of the branches may miss: guidance in half precision rounds,
rescaled guidance is another thing."""


def branches_of(calls: Sequence[tuple[int, Any]], like: torch.Tensor) -> list[torch.Tensor] | None:
    """The outputs of one step's branches; None unless one denoiser has made them, each one tensor of this shape.

    Args:
        calls: the denoiser's number and what it returned, for each call in order.
        like: what the scheduler gets.
    """
    found = [[leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)] for _, output in calls]
    outputs = [leaves[0] for leaves in found if len(leaves) == 1 and leaves[0].shape == like.shape]
    is_plain = len(outputs) == len(calls) and len({denoiser for denoiser, _ in calls}) == 1
    return outputs if is_plain else None


def copied(output: Any, device: torch.device | None = None) -> Any:
    """A denoiser's return value with copies of its tensors: its next call may overwrite them (CUDA graphs).

    Args:
        device: of the copies; None for where the tensors are.
    """

    def copy_of(leaf: Any) -> Any:
        return leaf.to(device or leaf.device, copy=True) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(copy_of, output)


class Shares:
    """Finds the weights with which guidance sums its branches. They add up to 1."""

    def __init__(self) -> None:
        self._sums: list[tuple[torch.Tensor, torch.Tensor, float, float]] = []
        self._branches: set[int] = set()

    def see(self, outputs: Sequence[torch.Tensor] | None, handed: torch.Tensor) -> None:
        """Note one step: its branches, and what the scheduler gets."""
        self._branches.add(len(outputs or ()))
        if outputs:
            first, *others = (output.to("cpu", torch.float64).flatten() for output in outputs)
            left = handed.to("cpu", torch.float64).flatten() - first
            basis = (
                torch.stack([other - first for other in others], dim=1) if others else first.new_empty(len(first), 0)
            )
            size = float((left + first).square().sum())
            self._sums.append((basis.T @ basis, basis.T @ left, float(left.square().sum()), size))

    def found(self) -> tuple[float, ...]:
        """The share of each branch; (1.0,) where they differ from step to step, or there is no such sum."""
        if len(self._branches) != 1 or 0 in self._branches:
            return (1.0,)
        products, towards = (torch.stack(each).sum(0) for each in list(zip(*self._sums, strict=True))[:2])
        others = torch.linalg.lstsq(products, towards[:, None], driver="gelsd").solution[:, 0]
        for product, toward, left, size in self._sums:
            missed = left - 2 * float(toward @ others) + float(others @ product @ others)
            if missed > LARGEST_MISS**2 * size:
                return (1.0,)
        return (1.0 - float(others.sum()), *others.tolist())
