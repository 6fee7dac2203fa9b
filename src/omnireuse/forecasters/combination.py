"""Forecasts as weighted sums of remembered values, of one request or of many at once.

Legend: R rows (requests), K remembered values, D candidate forecasts, S samples of a request, F features of a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

__all__ = ["Combination", "candidate_forecasts", "combine", "combined", "value_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Combination:
    """A weighted sum of values, so that many requests can be forecast in one operation.

    Attributes:
        values: all of one shape (S, …); one of a single dimension is one sample.
        table: the weights of each candidate, shape (D, K), on the host.
        evidence: says how much of each candidate to take: E tensors of one shape (…, S) on the values' device; none
            with one candidate.
        distance: how far ahead is forecast, as a multiple of the distance over which the evidence was measured; several
            where the candidates are forecasts of several steps.
        mix: (evidence (R, E, …, S), distances (R,) or (R, several)) -> share of each candidate, shape (R, D, S).
    """

    values: Sequence[torch.Tensor]
    table: Sequence[Sequence[float]]
    evidence: Sequence[torch.Tensor] = ()
    distance: float | Sequence[float] = 1.0
    mix: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None


def combine(weights: Sequence[float], values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Σ wᵢ · valueᵢ over the first values, accumulated in float32 at least; a new tensor in the values' dtype."""
    dtype = torch.promote_types(values[0].dtype, torch.float32)
    total = values[0].to(dtype) * weights[0]
    for weight, value in zip(weights[1:], values[1:], strict=False):
        total.add_(value.to(dtype), alpha=weight)
    return total.to(values[0].dtype)


def value_of(combination: Combination) -> torch.Tensor:
    """The sum of one combination, in float32 at least for mixed candidates, else in the values' dtype."""
    if combination.mix is None:
        return combine(combination.table[0], combination.values)
    return combined([combination])[0]


def combined(combinations: Sequence[Combination]) -> torch.Tensor:
    """Sums of combinations of one form, (R, S, …), in float32 at least."""
    first = combinations[0]
    values, table = _stacked(combinations)
    weights = table[:, 0, :, None]
    if first.mix is not None:
        evidence = torch.stack([shown for each in combinations for shown in each.evidence])
        evidence = evidence.unflatten(0, (len(combinations), -1))
        distances = torch.tensor([each.distance for each in combinations], dtype=evidence.dtype)
        shares = first.mix(evidence, distances.to(evidence.device, non_blocking=True)).to(values.dtype)
        weights = (table[..., None] * shares[:, :, None]).sum(1)
    chosen = (values * weights[..., None]).sum(1)
    return chosen.reshape(len(combinations), *first.values[0].shape)


def candidate_forecasts(combinations: Sequence[Combination]) -> torch.Tensor:
    """Each candidate's own forecast, (R, D, S, F), in float32 at least."""
    values, table = _stacked(combinations)
    return (values[:, None] * table[..., None, None]).sum(2)


def _stacked(combinations: Sequence[Combination]) -> tuple[torch.Tensor, torch.Tensor]:
    """The values (R, K, S, F) and the tables (R, D, K), on the values' device."""
    first = combinations[0].values[0]
    samples = first.shape[0] if first.ndim > 1 else 1
    wide = torch.promote_types(first.dtype, torch.float32)
    values = torch.stack([value for each in combinations for value in each.values]).to(wide)
    table = torch.tensor([each.table for each in combinations], dtype=wide).to(first.device, non_blocking=True)
    return values.reshape(len(combinations), len(combinations[0].values), samples, -1), table
