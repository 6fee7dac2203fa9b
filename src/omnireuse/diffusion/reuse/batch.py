"""Many requests at different steps in one batch: each gets what it would get alone, and the tensor work is fused.

The number of kernels follows from the kinds of rows (shape, dtype, number of remembered values, forecaster), not from
the number of requests. A batch of one is exactly the solo call; in larger ones sums are rounded in another order.

Legend: R rows (requests), K remembered values, D candidate forecasts, S samples of a request, F features of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import torch

from omnireuse.diffusion.reuse.branch_state import BranchState
from omnireuse.diffusion.reuse.choice import Choice
from omnireuse.diffusion.reuse.forecasters.base import Combination, Memory
from omnireuse.diffusion.reuse.generation import CUT, Generation
from omnireuse.diffusion.reuse.measuring import measures_errors
from omnireuse.diffusion.reuse.quantities import can_denoise
from omnireuse.errors import StateError

__all__ = ["Row", "candidate_forecasts", "combined", "observe_batch", "predict_batch"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One request of a batch.

    Attributes:
        generation: its state.
        choice: made by it at its present step.
        sample: its latents, shape (S, …).
        output: what the model computed for it, of the same shape; None where it is forecast.
    """

    generation: Generation
    choice: Choice
    sample: torch.Tensor
    output: torch.Tensor | None = None


@dataclass(eq=False)
class _Work:
    """A row on its way through a batch."""

    row: Row
    state: BranchState
    memory: Memory
    combination: Combination | None = None
    evidence: torch.Tensor | None = None
    error: float | None = None


def predict_batch(rows: Sequence[Row]) -> list[torch.Tensor]:
    """The forecast of each row's output, as `Generation.predict` gives it.

    Args:
        rows: whose choices are to reuse, each of another generation or branch.
    """
    outputs: list[torch.Tensor | None] = [None] * len(rows)
    fused: list[tuple[int, _Work]] = []
    started = perf_counter()
    for place, row in enumerate(rows):
        state = row.generation.begin(row.choice)
        memories = state.memories or []
        combination = (
            memories[0].combination(row.generation.coordinate) if len(rows) > 1 and len(memories) == 1 else None
        )
        if combination is None:
            outputs[place] = row.generation.predict(row.choice, row.sample)
        else:
            fused.append((place, _Work(row, state, memories[0], combination)))
    for group in _grouped(fused, _forecast_kind):
        values = combined([_combination(work) for _, work in group]).to(group[0][1].state.dtypes[0])
        for (place, work), output in zip(group, _outputs([work for _, work in group], values), strict=True):
            outputs[place] = output.to(work.state.output_dtype)
    seconds = (perf_counter() - started) / max(len(rows), 1)
    for _, work in fused:
        work.row.generation.conclude(work.row.choice, work.state, seconds=seconds)
    return [output for output in outputs if output is not None]


def observe_batch(rows: Sequence[Row]) -> list[torch.Tensor]:
    """What to hand on to each row's solver for a computed output, as `Generation.observe` gives it.

    Args:
        rows: whose choices are to compute, with their outputs, each of another generation or branch.
    """
    outputs: list[torch.Tensor | None] = [None] * len(rows)
    fused: list[tuple[int, _Work]] = []
    started = perf_counter()
    for place, row in enumerate(rows):
        output = _output_of(row)
        if torch.is_grad_enabled() and output.requires_grad:
            raise StateError(CUT)
        generation = row.generation
        generation.outputs.settle(generation.level, row.sample, output)
        if len(rows) == 1 or not generation.can_be_batched or not _is_defined(row):
            outputs[place] = generation.observe(row.choice, output, row.sample)
            continue
        state = generation.begin(row.choice)
        (memory,) = generation.memories_of(state, [output])
        fused.append((place, _Work(row, state, memory)))
    for group in _grouped(fused, lambda work: (_output_of(work.row).dtype, _kind(work))):
        works = [work for _, work in group]
        values = _values(works)
        _compare(works, values)
        _remember(works, values)
        for place, work in group:
            outputs[place] = work.row.output
    for _, work in fused:
        work.combination = work.memory.correction(work.row.generation.coordinate)
    corrections = [(place, work) for place, work in fused if work.combination is not None]
    for group in _grouped(corrections, _forecast_kind):
        values = combined([_combination(work) for _, work in group]).to(group[0][1].state.dtypes[0])
        for (place, work), output in zip(group, _outputs([work for _, work in group], values), strict=True):
            outputs[place] = output.to(work.state.output_dtype)
    seconds = (perf_counter() - started) / max(len(rows), 1)
    corrected = {place for place, _ in corrections}
    for place, work in fused:
        work.row.generation.conclude(
            work.row.choice, work.state, seconds=seconds, error=work.error, corrected=place in corrected
        )
    return [output for output in outputs if output is not None]


# -- values and outputs -----------------------------------------------------------------------------------------------


def _values(works: Sequence[_Work]) -> torch.Tensor:
    """The quantity of each output, (R, S, …)."""
    outputs = torch.stack([_output_of(work.row) for work in works])
    values = _x0(works, outputs) if works[0].row.generation.outputs.quantity == "x0" else outputs
    for work in works:
        work.state.dtypes, work.state.output_dtype = [values.dtype], outputs.dtype
    return values


def _x0(works: Sequence[_Work], outputs: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(outputs.dtype, torch.float32)
    samples = torch.stack([work.row.sample for work in works]).detach().to(wide)
    a, b = _weights(works, samples)
    return samples.mul_(a).add_(outputs.to(wide).mul(b))


def _outputs(works: Sequence[_Work], values: torch.Tensor) -> Iterable[torch.Tensor]:
    """The outputs that values (R, S, …) stand for."""
    if works[0].row.generation.outputs.quantity == "x0":
        samples = torch.stack([work.row.sample for work in works]).detach().to(values.dtype)
        a, b = _weights(works, samples)
        values = values.sub(samples.mul_(a)).div_(b)
    return values.unbind(0)


def _weights(works: Sequence[_Work], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """a and b of x0 = a · sample + b · output, one a row, shaped to be multiplied with rows."""
    levels = [work.row.generation.level for work in works]
    pairs = [(level.sample_weight or 0.0, level.output_weight or 0.0) for level in levels]
    table = torch.tensor(pairs, dtype=like.dtype).to(like.device, non_blocking=True)
    a, b = table.T.reshape(2, -1, *(1,) * (like.ndim - 1)).unbind(0)
    return a, b


# -- forecasts, their errors, and what is learnt -----------------------------------------------------------------------


def combined(combinations: Sequence[Combination]) -> torch.Tensor:
    """The forecasts (R, S, …) of combinations of one form."""
    forecasts = candidate_forecasts(combinations)
    first = combinations[0]
    if first.mix is None:
        chosen = forecasts[:, 0]
    else:
        evidence = torch.stack([each.evidence for each in combinations if each.evidence is not None])
        distances = torch.tensor([each.distance for each in combinations], dtype=evidence.dtype).to(evidence.device)
        shares = first.mix(evidence, distances).to(forecasts.dtype)
        chosen = (forecasts * shares[..., None]).sum(1)
    return chosen.reshape(len(combinations), *first.values[0].shape)


def candidate_forecasts(combinations: Sequence[Combination]) -> torch.Tensor:
    """Every candidate's forecast, (R, D, S, F), in float32 at least."""
    first = combinations[0].values[0]
    samples = first.shape[0] if first.ndim > 1 else 1
    wide = torch.promote_types(first.dtype, torch.float32)
    stacked = torch.stack([value for each in combinations for value in each.values]).to(wide)
    values = stacked.reshape(len(combinations), 1, len(combinations[0].values), samples, -1)
    table = torch.tensor([each.table for each in combinations], dtype=wide).to(first.device, non_blocking=True)
    return (values * table[..., None, None]).sum(2)


def _compare(works: Sequence[_Work], values: torch.Tensor) -> None:
    """Measure the error of the forecasts that these values make known, with one read of the device for each group."""
    known = [
        (i, w) for i, w in enumerate(works) if w.state.primed and measures_errors(w.row.generation.strategy, values)
    ]
    for _, work in known:
        work.combination = work.memory.combination(work.row.generation.coordinate)
    for group in _grouped(known, lambda work: _form(_combination(work))):
        places, measured = [place for place, _ in group], [work for _, work in group]
        truths = values[places]
        off = _means(combined([_combination(work) for work in measured]).float() - truths.float())
        figures = torch.stack((off, *_scales(measured, truths)), dim=1).tolist()
        for work, (error, of_output, of_x0) in zip(measured, figures, strict=True):
            work.error = error / of_output if of_output else None
            work.state.error = error / of_x0 if of_x0 else math.inf if error else 0.0


def _scales(works: Sequence[_Work], values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `OutputAlgebra.scales`, one a row."""
    outputs = torch.stack([_output_of(work.row) for work in works])
    of_output, quantity = _means(outputs), works[0].row.generation.outputs.quantity
    levels = [work.row.generation.level for work in works]
    shares = torch.tensor([abs(level.output_weight or 1.0) for level in levels]).to(of_output.device)
    if quantity == "x0":
        return of_output * shares, _means(values)
    defined = [can_denoise(level, w.row.sample, _output_of(w.row)) for level, w in zip(levels, works, strict=True)]
    if not any(defined):
        return of_output, of_output
    of_x0 = _means(_x0(works, outputs)) / shares
    return of_output, torch.where(torch.tensor(defined).to(of_x0.device), of_x0, of_output)


def _means(values: torch.Tensor) -> torch.Tensor:
    return values.float().abs().flatten(1).mean(1)


def _remember(works: Sequence[_Work], values: torch.Tensor) -> None:
    dtype = works[0].row.generation.strategy.history_dtype
    kept = values.to(dtype) if isinstance(dtype, torch.dtype) else values
    for work in works:
        work.combination = work.memory.candidates(work.row.generation.coordinate)
    learning = [(place, work) for place, work in enumerate(works) if work.combination is not None]
    for group in _grouped(learning, lambda work: _form(_combination(work))):
        forecasts = candidate_forecasts([_combination(work) for _, work in group])
        truths = kept[[place for place, _ in group]].to(forecasts.dtype).reshape(forecasts[:, 0].shape)
        evidence = group[0][1].memory.evidence_of(forecasts, truths)
        # Views of it: a few numbers a request.
        for (_, work), own in zip(group, evidence.unbind(0), strict=True):
            work.evidence = own
    # Copies: no request keeps the values of the others alive.
    own_values = [torch.empty_like(part) for part in kept.unbind(0)]
    torch._foreach_copy_(own_values, list(kept.unbind(0)))
    for work, value in zip(works, own_values, strict=True):
        work.memory.remember(work.row.generation.coordinate, value, work.evidence)


# -- rows that can share an operation ----------------------------------------------------------------------------------

_T = TypeVar("_T")


def _grouped(works: Iterable[tuple[int, _Work]], key: Callable[[_Work], Hashable]) -> list[list[tuple[int, _Work]]]:
    groups: dict[Hashable, list[tuple[int, _Work]]] = {}
    for place, work in works:
        groups.setdefault(key(work), []).append((place, work))
    return list(groups.values())


def _form(combination: Combination) -> Hashable:
    value = combination.values[0]
    return (
        *(value.shape, value.dtype, value.device),
        *(len(combination.values), len(combination.table), combination.mix),
    )


def _kind(work: _Work) -> Hashable:
    generation, sample = work.row.generation, work.row.sample
    kept_as = generation.strategy.history_dtype
    return (type(work.memory), generation.outputs.quantity, kept_as, sample.shape, sample.dtype, sample.device)


def _forecast_kind(work: _Work) -> Hashable:
    return (_form(_combination(work)), work.state.dtypes[0], _kind(work))


def _combination(work: _Work) -> Combination:
    assert work.combination is not None, "only rows with a combination are grouped by it"
    return work.combination


def _is_defined(row: Row) -> bool:
    generation = row.generation
    return generation.outputs.quantity != "x0" or can_denoise(generation.level, row.sample, _output_of(row))


def _output_of(row: Row) -> torch.Tensor:
    if row.output is None:
        raise StateError("observe_batch: every row must have the output that was computed for it")
    return row.output
