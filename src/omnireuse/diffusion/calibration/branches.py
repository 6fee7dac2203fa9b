"""The outputs of the branches of guidance, and the share of each in what the scheduler gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.runtime.denoisers import denoisers_of
from omnireuse.diffusion.reuse.runtime.interception import intercept

__all__ = ["BranchOutputs", "Shares", "branch_outputs", "copied"]

LARGEST_MISS = 1e-2
"""Share of what the scheduler gets that a weighted sum of the branches may miss: guidance in half precision rounds,
rescaled guidance is another thing."""


class BranchOutputs:
    """The outputs of a step's calls, in their order.

    Args:
        replayed: what the first calls return, in place of calling the denoiser.
    """

    def __init__(self, replayed: Sequence[Any] = ()) -> None:
        self._replayed = deque(replayed)
        self._made: list[tuple[int, Any]] = []

    def call(self, denoiser: int, proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the denoiser of this number, and note its output."""
        output = copied(self._replayed.popleft()) if self._replayed else proceed(*args, **kwargs)
        self.note(denoiser, output)
        return output

    def note(self, denoiser: int, output: Any) -> None:
        """Note an output of the denoiser of this number."""
        self._made.append((denoiser, output))

    def results(self) -> list[Any]:
        """Copies of what the calls since the last `take` returned."""
        return [copied(output) for _, output in self._made]

    def take(self, like: torch.Tensor) -> list[torch.Tensor] | None:
        """The outputs of the step that ends; None unless one denoiser has made them, each one tensor of this shape."""
        made, self._made = self._made, []
        found = [[leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)] for _, output in made]
        outputs = [leaves[0] for leaves in found if len(leaves) == 1 and leaves[0].shape == like.shape]
        is_plain = len(outputs) == len(made) and len({denoiser for denoiser, _ in made}) == 1
        return [output.clone() for output in outputs] if is_plain else None


def copied(output: Any) -> Any:
    """What a denoiser returned, with copies of its tensors."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, output)


@contextmanager
def branch_outputs(pipeline: Any, *, replayed: Sequence[Any] = ()) -> Iterator[BranchOutputs]:
    """Note what the pipeline's denoisers compute meanwhile; not what reuse returns, if it is enabled later."""
    outputs = BranchOutputs(replayed)
    with ExitStack() as stack:
        for number, denoiser in enumerate(denoisers_of(pipeline)):
            interception = intercept(denoiser, outputs, {"__call__": partial(outputs.call, number)})
            stack.callback(interception.undo)
        yield outputs


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
