"""A list of prompts as rows: encode only those that are missing, where that gives the very same bits.

That depends on the encoder, the padding and the kernels that the device picks for a batch size. So it is tested, once
for each size: the rows of a list must have the bits of the same prompts encoded alone, also in a list with one prompt
much longer, because a row may depend on how far the others make it padded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from omnireuse.stores.trees import flatten, unflatten

__all__ = ["Layout", "RowPlan", "has_rows", "join", "plan_rows", "slices_of", "split"]

_ROW_ARGUMENT = re.compile(r"^(negative_)?prompt(_\d+)?$")

Layout: TypeAlias = tuple[int, ...]
"""For each tensor of a batch its slices a prompt; 0: shared by all prompts."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A call with a list of prompts: the arguments that hold one item a prompt, and each prompt's own call."""

    names: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def uneven(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The call with its last prompt replaced by all of them in a row."""
        texts = {name: bound[name] for name in self.names if all(type(item) is str for item in bound[name])}
        return bound | {name: [*items[:-1], " ".join(items)] for name, items in texts.items()}


def plan_rows(bound: dict[str, Any]) -> RowPlan | None:
    """The rows of a call; None if it has fewer than two, or a list that may or may not go row by row."""
    prompt = bound.get("prompt")
    if type(prompt) is not list or len(prompt) < 2 or not all(type(item) is str for item in prompt):
        return None
    names = []
    for name, value in bound.items():
        if isinstance(value, dict) and any(isinstance(item, (list, tuple)) for item in value.values()):
            return None
        if isinstance(value, (list, tuple)) and value != ():  # () are no surplus arguments
            if type(value) is not list or len(value) != len(prompt) or not _ROW_ARGUMENT.match(name):
                return None
            names.append(name)
    return RowPlan(tuple(names), tuple(bound | {name: [bound[name][i]] for name in names} for i in range(len(prompt))))


def slices_of(batch: Any, size: int, row: Any) -> Layout | None:
    """The division of ``batch`` into ``size`` rows of the shapes of ``row``; None if impossible."""
    (skeleton, leaves), (row_skeleton, row_leaves) = flatten(batch), flatten(row)
    if skeleton != row_skeleton or not all(isinstance(leaf, torch.Tensor) and leaf.ndim for leaf in leaves):
        return None
    layout = [
        one.shape[0] if leaf.shape[0] == size * one.shape[0] else 0 if leaf.shape == one.shape else -1
        for leaf, one in zip(leaves, row_leaves, strict=True)
    ]
    return None if -1 in layout else tuple(layout)


def split(batch: Any, size: int, layout: Layout) -> list[Any] | None:
    """The value of each row; None if ``batch`` has other shapes."""
    skeleton, leaves = flatten(batch)
    parts: list[Any] = list(zip(leaves, layout, strict=True))
    if any(k and leaf.shape[0] != k * size for leaf, k in parts):
        return None
    return [unflatten(skeleton, [leaf[i * k : (i + 1) * k] if k else leaf for leaf, k in parts]) for i in range(size)]


def join(rows: list[Any], layout: Layout) -> Any | None:
    """One value of all rows; None if they do not fit together (another padded length)."""
    flat: list[Any] = [flatten(row) for row in rows]
    skeleton, joined = flat[0][0], []
    if any(other != skeleton for other, _ in flat):
        return None
    for j, k in enumerate(layout):
        column = [leaves[j] for _, leaves in flat]
        fits = all(leaf.shape == column[0].shape and leaf.dtype == column[0].dtype for leaf in column)
        if not fits or (k == 0 and not all(_has_bits(leaf, column[0]) for leaf in column)):
            return None
        joined.append(torch.cat(column) if k else column[0].clone())
    return unflatten(skeleton, joined)


def has_rows(batch: Any, size: int, layout: Layout, rows: list[Any]) -> bool:
    """Whether ``batch`` begins with exactly the bits of the given rows."""
    parts = split(batch, size, layout)
    if parts is None:
        return False
    return all(all(map(_has_bits, flatten(part)[1], flatten(row)[1])) for part, row in zip(parts, rows, strict=False))


def _has_bits(one: Any, other: Any) -> bool:
    """The same shape, dtype and bits; NaN equals itself and 0.0 is not -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
