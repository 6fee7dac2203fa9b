"""Many requests at different steps in one batch: each gets the same as alone, and the tensor work is fused.

The number of kernels follows from the kinds of rows (shape, dtype, number of remembered values, forecaster), not from
the number of requests. A batch of one is exactly the solo call; in larger ones sums are rounded in another order.
A fused operation that fails runs again for each row by itself, so that one row's fault is no other's.

Legend: R rows (requests), K remembered values, D candidate forecasts, S samples of a request, F features of a sample.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import torch

from omnireuse.errors import StateError
from omnireuse.forecasters.base import Combination, Memory
from omnireuse.forecasters.combination import candidate_forecasts, combined
from omnireuse.forecasters.gap import Gap
from omnireuse.loop.branch_state import BranchState, measures_errors, refuse_gradients
from omnireuse.loop.events import Choice, warn_given_up
from omnireuse.loop.generation import Generation

__all__ = ["Row", "observe_batch", "predict_batch"]

_T = TypeVar("_T")
logger = logging.getLogger("omnireuse")


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One request of a batch.

    Attributes:
        generation: its state.
        choice: made by it at its present step.
        sample: its latents, shape (S, …).
        output: the model's for it, of the same shape; None where it is forecast.
    """

    generation: Generation
    choice: Choice
    sample: torch.Tensor
    output: torch.Tensor | None = None

    @property
    def computed(self) -> torch.Tensor:
        """The output."""
        if self.output is None:
            raise StateError("observe_batch: every row must have the output that was computed for it")
        return self.output


class _Work:
    """A row whose tensor work is fused with that of others."""

    def __init__(self, place: int, row: Row, state: BranchState) -> None:
        self.place, self.row, self.state = place, row, state
        self.generation = row.generation
        self.level, self.coordinate = row.generation.level, row.generation.coordinate
        self.target = row.generation.outputs.target or "output"
        self.error: float | None = None
        self.correction: Combination | None = None
        """The replacement of the output's value, or None."""

    @property
    def memory(self) -> Memory:
        return self.state.memories[0]

    def gap(self) -> Gap | None:
        """The reused steps that the row's value ends."""
        generation = self.generation
        return self.state.gap_before(generation.index, generation.levels, generation.outputs.target)

    @property
    def kind(self) -> Hashable:
        """Rows of one kind can share operations on values."""
        kept_as, sample = self.generation.strategy.history_dtype, self.row.sample
        return (type(self.memory), self.target, kept_as, sample.shape, sample.dtype, sample.device)


def predict_batch(rows: Sequence[Row]) -> list[torch.Tensor | None]:
    """The forecast of each row's output, as `Generation.predict` gives it.

    Args:
        rows: whose choices are to reuse, each of another generation or branch.

    Returns:
        One for each row. None where it failed: compute that row's step; its generation has given up.
    """
    return _isolated(_predict, rows, "its forecast")


def observe_batch(rows: Sequence[Row]) -> list[torch.Tensor]:
    """The output for each row's solver after a computed step, as `Generation.observe` gives it.

    Args:
        rows: whose choices are to compute, with their outputs, each of another generation or branch.

    Returns:
        One for each row. The output itself where learning from it failed; that row's generation has given up.

    Raises:
        StateError: a row without output, or with one that needs a gradient.
    """
    refuse_gradients(row.computed for row in rows)
    used = _isolated(_observe, rows, "a computed step")
    return [row.computed if output is None else output for row, output in zip(rows, used, strict=True)]


def _isolated(
    fused: Callable[[Sequence[Row]], list[torch.Tensor]], rows: Sequence[Row], doing: str
) -> list[torch.Tensor | None]:
    before: list[Generation] = []
    try:
        if len(rows) > 1:
            before = [row.generation.copy() for row in rows]
            return [*fused(rows)]
    except Exception as error:
        logger.info("each row goes by itself: %s: %s", type(error).__name__, error)
        for row, kept in zip(rows, before, strict=False):
            vars(row.generation).update(vars(kept))
    outputs: list[torch.Tensor | None] = []
    for row in rows:
        try:
            outputs += fused([row])
        except Exception as error:  # of this row alone
            row.generation.finish()
            row.generation.failure = warn_given_up(row.generation.label, doing, error)
            outputs.append(None)
    return outputs


def _predict(rows: Sequence[Row]) -> list[torch.Tensor]:
    outputs: dict[int, torch.Tensor] = {}
    fused: list[tuple[_Work, Combination]] = []
    started = perf_counter()
    for place, row in enumerate(rows):
        state, combination = row.generation.state_of(row.choice), None
        if len(rows) > 1 and len(state.memories) == 1:
            combination = state.memories[0].combination(row.generation.coordinate)
        if combination is None:
            outputs[place] = row.generation.predict(row.choice, row.sample)
        else:
            fused.append((_Work(place, row, state), combination))
    outputs |= _combined_outputs(fused)
    _conclude([work for work, _ in fused], started, len(rows))
    return [outputs[place] for place in range(len(rows))]


def _observe(rows: Sequence[Row]) -> list[torch.Tensor]:
    outputs: dict[int, torch.Tensor] = {}
    fused: list[_Work] = []
    started = perf_counter()
    for place, row in enumerate(rows):
        row.generation.outputs.settle(row.generation.level, row.sample, row.computed)
        if len(rows) == 1 or not _can_fuse(row):
            outputs[place] = row.generation.observe(row.choice, row.computed, row.sample)
            continue
        outputs[place] = row.computed
        state = row.generation.state_of(row.choice)
        state.start_memories([row.computed])
        fused.append(_Work(place, row, state))
    for works in _grouped(fused, lambda work: (work.row.computed.dtype, work.kind)):
        values = _values(works)
        _compare(works, values)
        _remember(works, values)
    outputs |= _combined_outputs([(work, work.correction) for work in fused if work.correction is not None])
    _conclude(fused, started, len(rows))
    return [outputs[place] for place in range(len(rows))]


def _can_fuse(row: Row) -> bool:
    """True if learning from an output needs that output alone: no other rank and no signal."""
    generation, strategy = row.generation, row.generation.strategy
    is_ranked = strategy.policy.needs_error and not generation.agreement.is_alone
    if generation.failure or strategy.chosen_signal == "expected_output" or is_ranked:
        return False
    return generation.outputs.target == "output" or generation.level.can_denoise(row.sample, row.computed)


def _conclude(works: Sequence[_Work], started: float, rows: int) -> None:
    each = (perf_counter() - started) / max(rows, 1)
    for work in works:
        began = perf_counter() - each
        work.generation.conclude(
            work.row.choice, work.state, began, error=work.error, corrected=work.correction is not None
        )


def _values(works: Sequence[_Work]) -> torch.Tensor:
    """The prediction target of each output, (R, S, …)."""
    outputs = torch.stack([work.row.computed for work in works])
    values = outputs if works[0].target == "output" else _target_values(works, outputs, works[0].target)
    for work in works:
        work.state.dtypes, work.state.output_dtype = [values.dtype], outputs.dtype
    return values


def _target_values(works: Sequence[_Work], outputs: torch.Tensor, target: str) -> torch.Tensor:
    """As `NoiseLevel.value_of`, (R, S, …)."""
    wide = torch.promote_types(outputs.dtype, torch.float32)
    samples, a, b = _algebra(works, wide, target)
    return samples.mul_(a).add_(outputs.to(wide).mul(b))


def _algebra(
    works: Sequence[_Work], dtype: torch.dtype, target: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The samples (R, S, …), and a and b of a · sample + b · output, one a row; 0 where it is not defined."""
    samples = torch.stack([work.row.sample for work in works]).detach().to(dtype)
    levels = [work.level for work in works]
    pairs = [level.weights_of(target) if level.output_weight else (0.0, 0.0) for level in levels]
    table = torch.tensor(pairs, dtype=dtype).to(samples.device, non_blocking=True)
    a, b = table.T.reshape(2, -1, *(1,) * (samples.ndim - 1)).unbind(0)
    return samples, a, b


def _combined_outputs(found: Sequence[tuple[_Work, Combination]]) -> dict[int, torch.Tensor]:
    """The output of each row, by its place, from the weighted sum of its remembered values."""
    outputs: dict[int, torch.Tensor] = {}
    for group in _grouped(found, lambda pair: (_form(pair[1]), pair[0].state.dtypes[0], pair[0].kind)):
        works = [work for work, _ in group]
        values = combined([combination for _, combination in group]).to(works[0].state.dtypes[0])
        if values.shape[1:] != (shape := works[0].state.shapes[0]):
            raise works[0].state.shape_error(values[0], shape)
        if works[0].target != "output":
            samples, a, b = _algebra(works, values.dtype, works[0].target)
            values = values.sub(samples.mul_(a)).div_(b)
        outputs |= {w.place: value.to(w.state.output_dtype) for w, value in zip(works, values.unbind(0), strict=True)}
    return outputs


def _compare(works: Sequence[_Work], values: torch.Tensor) -> None:
    """Measure the error of the forecasts for these values, with one read of the device for each group."""
    known = [
        (place, work, combination)
        for place, work in enumerate(works)
        if work.state.primed and measures_errors(work.generation.strategy, values)
        if (combination := work.memory.combination(work.coordinate)) is not None
    ]
    for group in _grouped(known, lambda each: _form(each[2])):
        truths = values[[place for place, _, _ in group]]
        off = _means(combined([combination for _, _, combination in group]).float() - truths.float())
        scales = _scales([work for _, work, _ in group], truths)
        for (_, work, _), figures in zip(group, torch.stack((off, *scales), dim=1).tolist(), strict=True):
            error, of_output, of_x0 = figures
            work.error = error / of_output if of_output else None
            work.state.error = error / of_x0 if of_x0 else math.inf if error else 0.0


def _scales(works: Sequence[_Work], values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `Parametrization.scales`, one a row."""
    outputs = torch.stack([work.row.computed for work in works])
    of_output = _means(outputs)
    shares = torch.tensor([abs(work.level.output_weight or 1.0) for work in works]).to(of_output.device)
    if works[0].target == "x0":
        return of_output * shares, _means(values)
    defined = [work.level.can_denoise(work.row.sample, work.row.computed) for work in works]
    if not any(defined):
        return of_output, of_output
    of_x0 = _means(_target_values(works, outputs, "x0"))
    if works[0].target == "velocity":
        units = torch.tensor([work.level.coordinate for work in works]).to(of_output.device)
        return of_output * shares / units, of_x0 / units
    return of_output, torch.where(torch.tensor(defined).to(of_x0.device), of_x0 / shares, of_output)


def _means(values: torch.Tensor) -> torch.Tensor:
    return values.float().abs().flatten(1).mean(1)


def _remember(works: Sequence[_Work], values: torch.Tensor) -> None:
    dtype = works[0].generation.strategy.history_dtype
    kept = values.to(dtype) if isinstance(dtype, torch.dtype) else values
    evidence: dict[int, torch.Tensor] = {}
    found = [(place, work.memory.candidates(work.coordinate)) for place, work in enumerate(works)]
    learning = [(place, combination) for place, combination in found if combination is not None]
    for group in _grouped(learning, lambda pair: _form(pair[1])):
        places = [place for place, _ in group]
        forecasts = candidate_forecasts([combination for _, combination in group])
        truths = kept[places].to(forecasts.dtype).reshape(forecasts[:, 0].shape)
        # Views of one tensor: a few numbers a request.
        evidence |= zip(places, works[places[0]].memory.evidence_of(forecasts, truths).unbind(0), strict=True)
    # Copies: no request keeps the values of the others alive.
    own_values = [torch.empty_like(part) for part in kept.unbind(0)]
    torch._foreach_copy_(own_values, list(kept.unbind(0)))
    for place, (work, value) in enumerate(zip(works, own_values, strict=True)):
        gap, shown = work.gap(), evidence.get(place)
        if gap is not None:
            work.correction = work.memory.correct_interval(gap, work.coordinate, value, shown)
        else:
            work.memory.remember(work.coordinate, value, shown)
            work.correction = work.memory.correction(work.coordinate)
        work.state.primed = work.memory.primed


def _grouped(works: Iterable[_T], key: Callable[[_T], Hashable]) -> list[list[_T]]:
    groups: dict[Hashable, list[_T]] = {}
    for work in works:
        groups.setdefault(key(work), []).append(work)
    return list(groups.values())


def _form(combination: Combination) -> Hashable:
    value = combination.values[0]
    sizes = (len(combination.values), len(combination.table), combination.mix)
    return (value.shape, value.dtype, value.device, *sizes)
