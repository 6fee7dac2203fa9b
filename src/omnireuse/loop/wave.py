"""A batch whose rows are decided on one by one: a generation serves each row, and their results are joined."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from omnireuse.loop.events import Choice
from omnireuse.loop.generation import Generation
from omnireuse.loop.stepper import NOTHING, Stepper

__all__ = ["Wave"]

T = TypeVar("T", torch.Tensor, torch.Tensor | None)


class Wave(Stepper):
    """Generations of one run, each of which serves a row of its batch: every row gets what it would get alone.

    Attributes:
        generations: that of the whole batch, which is not asked here, and those of the rows so far, in their order.
        size: number of rows that `computes` decides on.
        reused_rows: rows that are forecast at a step that is computed for others.
    """

    def __init__(self, generations: list[Generation], size: int = 1) -> None:
        self.generations, self.size, self.reused_rows = generations, size, list[int]()

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        """Whether the model is called at this step, for some rows at least."""
        pairs = zip(self._of(self.size), _rows(latents, self.size), strict=True)
        computed = [each.computes(step, own, kind=kind) for each, own in pairs]
        self.reused_rows = [row for row, is_computed in enumerate(computed) if not is_computed] if any(computed) else []
        return any(computed)

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        """The solver's input, row by row; the output of rows that are reused is not looked at."""
        rows = zip(self._of(self.size), _rows(output, self.size), _rows(latents, self.size), strict=True)
        used = [
            each.use(None if row in self.reused_rows else computed, own, given)
            for row, (each, computed, own) in enumerate(rows)
        ]
        return torch.cat(used)

    def ask(self, rows: int, branch: str, *, signal: torch.Tensor | None, **given: Any) -> list[Choice]:
        """Decide for each of so many rows of a call, as `Generation.decide`.

        Args:
            signal: of all rows.
        """
        pairs = zip(self._of(rows), _rows(signal, rows), strict=True)
        return [each.decide(branch, signal=own, **given) for each, own in pairs]

    def answer(
        self,
        choices: Sequence[Choice],
        outputs: Sequence[torch.Tensor] | None,
        samples: Sequence[torch.Tensor | None],
    ) -> Sequence[torch.Tensor]:
        """What stands for the outputs of a call, row by row, as `Generation.answer`.

        Args:
            choices: one a row.
            outputs, samples: of all rows.
        """
        count = len(choices)
        computed = [None] * count if outputs is None else zip(*(_rows(each, count) for each in outputs), strict=True)
        own = zip(*(_rows(each, count) for each in samples), strict=True)
        rows = zip(self._of(count), choices, computed, own, strict=True)
        used = [each.answer(choice, found, sample) for each, choice, found, sample in rows]
        return [torch.cat(each) for each in zip(*used, strict=True)]

    def _of(self, rows: int) -> Sequence[Generation]:
        made = len(self.generations) - 1
        self.generations += [self.generations[0].of_row(row) for row in range(made, rows)]
        return self.generations[1 : rows + 1]


def _rows(batch: T, rows: int) -> Sequence[T]:
    """The part of each row; a tensor of one row belongs to all, and so does None. Branches of guidance that are stacked
    follow each other, each with all rows."""
    return [batch] * rows if batch is None or len(batch) == 1 else [batch[row::rows] for row in range(rows)]
