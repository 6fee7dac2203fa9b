"""Many requests at different steps in one batch: each gets what it would get alone, and a fault is of one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from omnireuse.errors import StateError
from omnireuse.loop.branch_state import refuse_gradients
from omnireuse.loop.events import Choice, warn_given_up
from omnireuse.loop.generation import Generation

__all__ = ["Row", "observe_batch", "predict_batch"]


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


def predict_batch(rows: Sequence[Row]) -> list[torch.Tensor | None]:
    """The forecast of each row's output, as `Generation.predict` gives it.

    Args:
        rows: whose choices are to reuse, each of another generation or branch.

    Returns:
        One for each row. None where it failed: compute that row's step; its generation has given up.
    """
    return [_or_none(row, "its forecast", lambda row: row.generation.predict(row.choice, row.sample)) for row in rows]


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
    used = [
        _or_none(row, "a computed step", lambda row: row.generation.observe(row.choice, row.computed, row.sample))
        for row in rows
    ]
    return [row.computed if output is None else output for row, output in zip(rows, used, strict=True)]


def _or_none(row: Row, doing: str, does: Callable[[Row], torch.Tensor]) -> torch.Tensor | None:
    try:
        return does(row)
    except Exception as error:  # of this row alone
        row.generation.finish()
        row.generation.failure = warn_given_up(row.generation.label, doing, error)
        return None
