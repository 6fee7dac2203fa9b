"""Weighted sums of many requests at once.

Legend: R rows (requests), K remembered values, D candidate forecasts, S samples of a request, F features of a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omnireuse.forecasters.base import Combination, combine

__all__ = ["candidate_forecasts", "combined", "value_of"]


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
