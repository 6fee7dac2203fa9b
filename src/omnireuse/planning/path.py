"""The path of a full run: its latents, how alike its outputs are, and the share of each branch in them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

__all__ = ["OutputProducts", "Path", "branches_of", "copied", "shares_of"]


CHUNK = 1 << 20
"""Elements of a latent that are in float64 at a time."""


@dataclass
class Path:
    """The path of a full run.

    Attributes:
        latents: before the first step, then after each step.
        shares: of each branch of guidance in what the scheduler gets; (1.0,) if they cannot be told apart.
        calls: for each of the first steps, what the denoisers returned, in the order of the calls.
        outputs: for each of the first steps, what the scheduler got.
    """

    latents: list[torch.Tensor] = field(default_factory=list)
    shares: tuple[float, ...] = (1.0,)
    calls: list[list[Any]] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class OutputProducts:
    """The likeness of the outputs of full runs.

    Attributes:
        products: (samples, branches, steps, branches, steps) inner products of what each branch of guidance adds to
            what the scheduler gets, as a share of the squared norm of the final latents.
        effects: (steps,) how far an output of 1 at each step moves the final latents by the scheduler's arithmetic
            alone, with all other outputs unchanged.
    """

    products: NDArray[np.float64]
    effects: NDArray[np.float64]

    @classmethod
    def joined(cls, runs: Sequence[OutputProducts]) -> OutputProducts:
        """The samples of all runs together, at least one. Branches that one run cannot tell apart are added up."""
        products = [run.products for run in runs]
        if len({each.shape[1] for each in products}) > 1:
            products = [each.sum((1, 3), keepdims=True) for each in products]
        return cls(products=np.concatenate(products), effects=runs[0].effects)

    @classmethod
    def of(
        cls,
        steps: Sequence[tuple[torch.Tensor, list[torch.Tensor] | None]],
        final: torch.Tensor,
        effects: NDArray[np.float64],
    ) -> tuple[OutputProducts, tuple[float, ...]]:
        """The products of one run, and the shares of its branches.

        Args:
            steps: of each step what the scheduler got, and the outputs of its branches; None if they are not known.
            final: the final latents, one row for each sample.
            effects: as above.
        """
        shares = shares_of(steps)
        outputs = [made if made is not None and len(shares) > 1 else [output] for output, made in steps]
        rows = [torch.stack([each.float().cpu().flatten(1) for each in made], 1) for made in outputs]
        # (samples, branches, steps, elements); float64 by parts: neighbours differ in the last digits.
        parts = torch.stack(rows, 2)
        samples, branches, count, _ = parts.shape
        products = torch.zeros(samples, branches * count, branches * count, dtype=torch.float64)
        for chunk in parts.flatten(1, 2).split(CHUNK, dim=2):
            values = chunk.double()
            products += values @ values.transpose(1, 2)
        weights = torch.tensor(shares, dtype=torch.float64)
        products = products.view(samples, branches, count, branches, count) * weights[:, None, None, None]
        products = products * weights[:, None]
        size = final.cpu().double().flatten(1).square().sum(1).clamp_min(1e-12)
        return cls(products=(products / size[:, None, None, None, None]).numpy(), effects=effects), shares


LARGEST_MISS = 1e-2
"""Share of what the scheduler gets that a weighted sum of the branches may miss: guidance in half precision rounds,
rescaled guidance is another thing."""


def branches_of(calls: Sequence[tuple[Hashable, Any]], like: torch.Tensor) -> list[torch.Tensor] | None:
    """The outputs of one step's branches; None unless one denoiser has made them, each one tensor of this shape.

    Args:
        calls: the denoiser's number and what it returned, for each call in order.
        like: what the scheduler gets.
    """
    found = [[leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)] for _, output in calls]
    outputs = [leaves[0] for leaves in found if len(leaves) == 1 and leaves[0].shape == like.shape]
    is_plain = len(outputs) == len(calls) and len({denoiser for denoiser, _ in calls}) == 1
    return outputs if is_plain else None


def copied(output: object, device: torch.device | None = None) -> Any:
    """A denoiser's return value with copies of its tensors: its next call may overwrite them (CUDA graphs).

    Args:
        device: of the copies; None for where the tensors are.
    """

    def copy_of(leaf: object) -> Any:
        return leaf.to(device or leaf.device, copy=True) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(copy_of, output)


def shares_of(steps: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor] | None]]) -> tuple[float, ...]:
    """The share of each branch with which guidance sums them, which add up to 1; (1.0,) if they differ from step to
    step, or there is no such sum.

    Args:
        steps: of each step what the scheduler got, and the outputs of its branches; None if they are not known.
    """
    if len({len(outputs or ()) for _, outputs in steps}) != 1:
        return (1.0,)
    sums: list[tuple[torch.Tensor, torch.Tensor, float, float]] = []
    for handed, outputs in steps:
        if not outputs:
            return (1.0,)
        first, *others = (output.to("cpu", torch.float64).flatten() for output in outputs)
        left = handed.to("cpu", torch.float64).flatten() - first
        basis = torch.stack([other - first for other in others], dim=1) if others else first.new_empty(len(first), 0)
        size = float((left + first).square().sum())
        sums.append((basis.T @ basis, basis.T @ left, float(left.square().sum()), size))
    products, towards = (torch.stack(each).sum(0) for each in list(zip(*sums, strict=True))[:2])
    found = torch.linalg.lstsq(products, towards[:, None], driver="gelsd").solution[:, 0]
    for product, toward, squared, size in sums:
        missed = squared - 2 * float(toward @ found) + float(found @ product @ found)
        if missed > LARGEST_MISS**2 * size:
            return (1.0,)
    return (1.0 - float(found.sum()), *found.tolist())
