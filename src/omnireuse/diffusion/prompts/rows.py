"""A list of prompts, row by row: encode only the rows that are missing, where that gives the very same bits.

Whether it does depends on the encoder, the padding and on which kernels the device picks for which batch size; so it
is not assumed but proven, once per batch size: the direct call's rows are compared bit by bit with the prompts
encoded alone, and so are the rows of a list with one prompt much longer, because a row may depend on how far the others
make it padded.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.core.stores.trees import Skeleton, flatten, unflatten
from omnireuse.errors import WrongTypeError

__all__ = ["Layout", "RowBook", "RowPlan", "plan_rows"]

logger = logging.getLogger("omnireuse")

_ROW_ARGUMENT = re.compile(r"^(negative_)?prompt(_\d+)?$")
_NUM_PROBES = 8


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A call with a list of prompts, as calls with one prompt each.

    Args:
        names: the arguments that hold one item a prompt.
        rows: the bound arguments of each prompt's own call, as lists of one.
    """

    names: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]

    def batch(self, bound: dict[str, Any], indices: list[int]) -> dict[str, Any]:
        """The bound arguments of a call with only these rows."""
        return bound | {name: [bound[name][i] for i in indices] for name in self.names}

    def uneven(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The call with its last prompt replaced by all of them in a row."""
        lists = {name: bound[name] for name in self.names if all(type(item) is str for item in bound[name])}
        return bound | {name: [*items[:-1], " ".join(items)] for name, items in lists.items()}


def plan_rows(bound: dict[str, Any]) -> RowPlan | None:
    """The rows of a call; None if it has fewer than two, or a list that may or may not go row by row."""
    prompt = bound.get("prompt")
    if type(prompt) is not list or len(prompt) < 2 or not all(type(p) is str for p in prompt):
        return None
    names = []
    for name, value in bound.items():
        if isinstance(value, (list, tuple)):
            if type(value) is not list or len(value) != len(prompt) or not _ROW_ARGUMENT.match(name):
                return None
            names.append(name)
    rows = tuple(bound | {name: [bound[name][i]] for name in names} for i in range(len(prompt)))
    return RowPlan(tuple(names), rows)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a batch's tensors divide into rows: for each tensor its slices a prompt (0: shared by all prompts)."""

    skeleton: Skeleton
    per_row: tuple[int, ...]

    def split(self, value: Any, num_rows: int) -> list[Any] | None:
        """The value of each row; None if ``value`` is not laid out like this."""
        skeleton, leaves = flatten(value)
        if skeleton != self.skeleton or len(leaves) != len(self.per_row):
            return None
        if any(k and leaf.shape[0] != k * num_rows for k, leaf in zip(self.per_row, leaves, strict=True)):
            return None
        return [
            unflatten(
                skeleton,
                [leaf[i * k : (i + 1) * k] if k else leaf for k, leaf in zip(self.per_row, leaves, strict=True)],
            )
            for i in range(num_rows)
        ]

    def join(self, rows: list[Any]) -> Any | None:
        """One value of all rows; None if they do not fit together (another padded length)."""
        flat = [flatten(row) for row in rows]
        if any(skeleton != self.skeleton for skeleton, _ in flat):
            return None
        joined: list[Any] = []
        for j, k in enumerate(self.per_row):
            column: list[Any] = [leaves[j] for _, leaves in flat]
            first = column[0]
            if any(leaf.shape != first.shape or leaf.dtype != first.dtype for leaf in column):
                return None
            if k:
                joined.append(torch.cat(column))
            elif all(_equal_bits(leaf, first) for leaf in column[1:]):
                joined.append(first.clone())
            else:
                return None
        return unflatten(self.skeleton, joined)


class RowBook:
    """Which batch sizes were proven, for which kind of call.

    A kind is everything of the call but its prompts, the state of the encoders included.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[Any, tuple[Layout | None, set[int], set[int]]] = {}
        self.num_proven = self.num_refused = 0

    def layout(self, kind: Any, size: int) -> Layout | None:
        """How to divide a batch of ``size``, if that is proven."""
        layout, proven, _ = self._kinds.get(kind, (None, (), ()))
        return layout if size in proven else None

    def is_refused(self, kind: Any, size: int) -> bool:
        """Whether the proof failed before."""
        return size in self._kinds.get(kind, (None, (), ()))[2]

    def prove(
        self,
        kind: Any,
        batch: Any,
        size: int,
        encode_row: Callable[[int], Any],
        encode_uneven: Callable[[], Any],
    ) -> dict[int, Any]:
        """Compare up to eight rows of ``batch`` (first, last and evenly between) with the same prompts encoded alone.

        Args:
            encode_uneven: encodes the list with a longer prompt in its last place.

        Returns:
            The rows that were encoded, by index.
        """
        probes = sorted({round(i * (size - 1) / (_NUM_PROBES - 1)) for i in range(_NUM_PROBES)})
        rows = {i: encode_row(i) for i in probes}
        layout = _common_layout(batch, size, rows)
        if layout is not None and not _keeps_rows(layout, encode_uneven(), size, rows):
            layout = None
        with self._lock:
            known, proven, refused = self._kinds.setdefault(kind, (layout, set(), set()))
            if layout is not None and known in (None, layout):
                self._kinds[kind] = (layout, proven | {size}, refused)
                self.num_proven += 1
            else:
                self._kinds[kind] = (known, proven, refused | {size})
                self.num_refused += 1
                logger.info("lists of %d prompts are encoded whole: rows alone do not give the same bits", size)
        return rows

    def forget(self) -> None:
        """Drop all proofs: the encoders changed."""
        with self._lock:
            self._kinds.clear()


def _common_layout(batch: Any, size: int, rows: dict[int, Any]) -> Layout | None:
    """The layout under which every given row of ``batch`` has exactly the bits of the row alone."""
    try:
        skeleton, leaves = flatten(batch)
        flat = {i: flatten(row) for i, row in rows.items()}
    except WrongTypeError:
        return None
    if any(s != skeleton for s, _ in flat.values()):
        return None
    per_row = []
    for j, leaf in enumerate(leaves):
        column: dict[int, Any] = {i: row_leaves[j] for i, (_, row_leaves) in flat.items()}
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            return None
        k = next(iter(column.values())).shape[0] if next(iter(column.values())).ndim else 0
        if (
            k
            and leaf.shape[0] == k * size
            and all(_equal_bits(leaf[i * k : (i + 1) * k], r) for i, r in column.items())
        ):
            per_row.append(k)
        elif all(_equal_bits(leaf, row) for row in column.values()):
            per_row.append(0)
        else:
            return None
    return Layout(skeleton, tuple(per_row))


def _keeps_rows(layout: Layout, batch: Any, size: int, rows: dict[int, Any]) -> bool:
    """Whether the given rows, the last one aside, are in ``batch`` as they are alone."""
    parts = layout.split(batch, size)
    return parts is not None and all(
        all(map(_equal_bits, flatten(parts[i])[1], flatten(row)[1])) for i, row in rows.items() if i != size - 1
    )


def _equal_bits(one: Any, other: Any) -> bool:
    """The same shape, dtype and bits; NaN equals itself and 0.0 is not -0.0."""
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
