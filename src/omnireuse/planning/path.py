"""The path of a full run: its latents, and how alike its outputs are. Fits and plans need no more of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse.planning.branches import Shares

__all__ = ["OutputProducts", "Path"]

CHUNK = 1 << 20
"""Elements of a latent that are in float64 at a time."""


@dataclass
class Path:
    """The path of a full run.

    Attributes:
        latents: before the first step, then after each step.
        shares: of each branch of guidance in what the scheduler gets; (1.0,) where they cannot be told apart.
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
            steps: of each step what the scheduler got, and the outputs of its branches; None where they are not known.
            final: the final latents, one row for each sample.
            effects: as above.
        """
        found = Shares()
        for output, made in steps:
            found.see(made, output)
        shares = found.found()
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
