"""Weights for one schedule, fitted step by step on runs that follow it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from omnireuse import messages
from omnireuse.errors import UnsupportedModelError
from omnireuse.forecasters import combine

__all__ = ["FitRun", "FitState", "WeightFit"]

KEPT = 4
"""Computed outputs that a weighted sum takes, and that a run therefore keeps."""
RIDGE = 1e-9
"""Share of the trace that is added to the diagonal: outputs of neighbouring steps are nearly the same."""
PRIOR = 0.2
"""Share of the error that a fit leaves which is added to the diagonal: a direction whose outputs differ by less than
that error keeps the newest output. With one to three pictures the tail gains most (``python -m bench tune``)."""
DIGITS = 6
"""Of a weight, so that what is written down is what was judged."""


FitState: TypeAlias = tuple[tuple[tuple[tuple[int, tuple[float, ...]], ...], ...], int]
"""Of a `WeightFit`, in numbers: for each step, and each sample that it was fitted on, how many outputs are in the sum,
and the sums in order; and the number of branches."""


class WeightFit:
    """Fits weights of the last computed outputs for each reused step, and for the first computed step after a gap.

    The runs that it is fitted on follow the schedule themselves. At each step the target is the output with which the
    scheduler would arrive at the full run's latents. The weights are solved for it by least squares, and the run goes
    on with what they give, so later steps know the errors of earlier ones. Each further run adds its sums. Every sample
    counts by its relative error, as in PSNR. Branches of guidance have weights of their own if guidance sums them
    with the same shares at every step.

    Source: fitting a solver's coefficients to its own fine runs, as in "Bespoke Solvers", arXiv 2310.19075; correcting
    a past step with an output that is computed anyway, as UniPC does, arXiv 2302.04867.

    Args:
        computed: the steps that are computed.
        total: steps of a run.
        kept: number of outputs of each branch in a sum.

    Attributes:
        is_done: whether further runs follow the weights and change them no more, which judges them.
    """

    def __init__(self, computed: Sequence[int], total: int, *, kept: int = KEPT) -> None:
        self._computed = frozenset(computed)
        self._kept, self.is_done = kept, False
        self._sums: list[list[_Sums]] = [[] for _ in range(total)]
        self._weights: list[tuple[tuple[float, ...], ...]] = [() for _ in range(total)]
        self._branches = 1

    @property
    def weights(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        """For each branch and each step so far, the newest output first; empty if the computed output is used."""
        return tuple(tuple(sets[branch] if sets else () for sets in self._weights) for branch in range(self._branches))

    @property
    def state(self) -> FitState:
        """What the weights follow from. Setting it goes on with an earlier fit of the same steps."""
        return tuple(tuple((len(each[1]), _numbers(each)) for each in sums) for sums in self._sums), self._branches

    @state.setter
    def state(self, state: FitState) -> None:
        sums, self._branches = state
        self._sums = [[_sums_of(*each) for each in step] for step in sums]
        self._weights = [_solve(each, self._branches) if each else () for each in self._sums]

    @property
    def first_gap(self) -> int:
        """The first step that is not computed; 0 if all are."""
        return next((step for step in range(len(self._weights)) if step not in self._computed), 0)

    def begin(self, shares: Sequence[float]) -> FitRun:
        """A further run that follows the schedule; `shares` as in `Path`."""
        self._branches = len(shares)
        return FitRun(self, shares)


class FitRun:
    """A run that goes on, at each step, with the sums by the weights fitted so far.

    Attributes:
        index: of the step to come.
    """

    def __init__(self, fit: WeightFit, shares: Sequence[float]) -> None:
        self._fit, self._shares = fit, shares
        self._known: deque[list[torch.Tensor]] = deque(maxlen=fit._kept)
        self.index = 0
        self._after_gap = False

    @property
    def computes(self) -> bool:
        """True if the step to come is computed."""
        return self.index in self._fit._computed

    def step(
        self, made: list[torch.Tensor] | None, output: torch.Tensor, target: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """The output for the solver at this step.

        Args:
            made: outputs of the branches, which are changed; None if they are not known, or nothing was computed.
            output: after guidance; only its shape counts if nothing was computed.
            target: finds the output with which the solver arrives at the full run's latents.
        """
        fit, here, computes = self._fit, self.index, self.computes
        self.index += 1
        if computes:
            self._known.appendleft(_parts(made, self._shares, output))
            if not self._after_gap:
                return output
        self._after_gap = not computes
        by_branch = list(zip(*self._known, strict=True))
        if not fit.is_done:
            fit._sums[here] += _sums(by_branch, target())
            fit._weights[here] = _solve(fit._sums[here], len(by_branch))
        return torch.stack(
            [combine(weights, each) for weights, each in zip(fit._weights[here], by_branch, strict=True)]
        ).sum(0)


def _parts(outputs: list[torch.Tensor] | None, shares: Sequence[float], handed: torch.Tensor) -> list[torch.Tensor]:
    """The part of each branch in what the scheduler gets."""
    if len(shares) == 1:
        return [handed.clone()]
    if outputs is None or len(outputs) != len(shares):
        raise UnsupportedModelError(messages.BRANCHES_DIFFER, branches=len(shares))
    return [output.mul_(share) for output, share in zip(outputs, shares, strict=True)]


_Sums = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""⟨basis, basis⟩ (k, k), ⟨basis, target⟩ (k,) and ⟨target, target⟩ () of one sample, float64."""


def _sums(by_branch: Sequence[Sequence[torch.Tensor]], target: torch.Tensor) -> list[_Sums]:
    basis = []
    left = target.to("cpu", torch.float64).flatten(1)
    for known in by_branch:
        # Seen from the newest output: neighbours differ in the last digits of their inner products.
        newest, *others = (value.to("cpu", torch.float64).flatten(1) for value in known)
        basis += [newest, *(other - newest for other in others)]
        left = left - newest
    values = torch.stack(basis, dim=1)
    products, towards = values @ values.transpose(1, 2), (values @ left[:, :, None])[..., 0]
    return list(zip(products, towards, left.square().sum(1), strict=True))


def _numbers(sums: _Sums) -> tuple[float, ...]:
    return tuple(torch.cat([each.flatten() for each in sums]).tolist())


def _sums_of(size: int, numbers: Sequence[float]) -> _Sums:
    products, towards, target = torch.tensor(numbers, dtype=torch.float64).split([size * size, size, 1])
    return products.view(size, size), towards, target[0]


def _solve(sums: Sequence[_Sums], branches: int) -> tuple[tuple[float, ...], ...]:
    products, towards, sizes = (torch.stack(each) for each in zip(*sums, strict=True))
    share, left = torch.ones(len(sums), dtype=torch.float64), 0.0
    for _ in range(6):
        matrix = torch.einsum("n,nij->ij", share, products)
        matrix += (RIDGE * matrix.trace() + PRIOR * left) * torch.eye(len(matrix), dtype=torch.float64)
        found = torch.linalg.solve(matrix, torch.einsum("n,ni->i", share, towards))
        errors = sizes - 2 * towards @ found + torch.einsum("nij,i,j->n", products, found, found)
        # Each sample by its relative error, but none without bound.
        share = 1 / (errors.clamp_min(0) + 0.1 * errors.mean().clamp_min(1e-12))
        left = float((share * errors.clamp_min(0)).mean())
    return tuple(
        tuple(round(weight, DIGITS) for weight in (1 + float(newest - sum(others)), *others))
        for newest, *others in found.view(branches, -1).tolist()
    )
