"""Rows of a batch: those of a call's arguments, and of tensors.

Lengths suggest which part of an argument belongs to which row, and a model's declaration overrules them. Either is only
a proposal: `regions.cuts` compares the first call that is cut so with the whole one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

__all__ = ["ENTRIES", "Dimension", "differing_parts", "flattened", "rows_of", "unflattened", "with_rows"]


ENTRIES: Literal["entries"] = "entries"
"""In place of a dimension: a list has an entry for each row."""
Dimension = int | Literal["entries"] | None
"""Of the rows in an argument's tensors; None if all rows share it."""


def rows_of(
    arguments: Mapping[str, Any], rows: Sequence[int], batch: int, declared: Mapping[str, Dimension]
) -> dict[str, Any]:
    """The arguments of a call for some rows of its batch.

    Args:
        arguments: of the whole call, by name.
        rows: r indices.
        batch: rows of the whole call.
        declared: the dimensions of some arguments; one that is n times as long as the batch has n neighbours for each
            row. Without a declaration a tensor has its rows in dimension 0 if that is as long as the batch, a list as
            long as the batch has an entry for each row, and everything else is shared.
    """
    index = torch.tensor(rows)
    return {
        name: value if declared.get(name, 0) is None else _cut(value, index, batch, declared.get(name))
        for name, value in arguments.items()
    }


def _cut(value: object, rows: torch.Tensor, batch: int, declared: Dimension, *, is_argument: bool = True) -> Any:
    dimension = declared if isinstance(declared, int) else None
    if isinstance(value, torch.Tensor):
        length = value.shape[dimension or 0] if value.ndim > (dimension or 0) else 0
        each, rest = divmod(length, batch)
        if rest or not each or (each > 1 and dimension is None):
            return value
        index = (rows[:, None] * each + torch.arange(each)).flatten()
        return value.index_select(dimension or 0, index.to(value.device))
    if isinstance(value, Mapping):
        return {key: _cut(item, rows, batch, declared) for key, item in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    is_list = is_argument and isinstance(value, list) and len(value) == batch
    if is_list and (declared == ENTRIES or not _has_rows(value, batch)):
        return [value[row] for row in rows.tolist()]
    items = [_cut(item, rows, batch, declared, is_argument=False) for item in value]
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return items


def _has_rows(values: Sequence[Any], batch: int) -> bool:
    return any(isinstance(each, torch.Tensor) and each.ndim > 0 and each.shape[0] == batch for each in values)


def differing_parts(
    arguments: Mapping[str, Any], rows: Sequence[int], batch: int, but: Collection[Hashable] = ()
) -> set[Hashable]:
    """The places of a call's arguments in which these rows differ from as many first rows.

    A call that is cut there in a wrong way shows. If they are alike it need not.

    Args:
        but: places that are not looked at, for each look at a tensor waits for its device.
    """
    if list(rows) == list(range(len(rows))):
        return set()
    return {place for place, shown, first in _parts(arguments, rows, batch, but) if not _are_alike(shown, first)}


def _parts(
    value: object, rows: Sequence[int], batch: int, but: Collection[Hashable], path: tuple[Any, ...] = ()
) -> Iterator[tuple[Hashable, Any, Any]]:
    """Each place with as many entries as the batch has rows: those of some rows, and as many first ones."""
    if isinstance(value, torch.Tensor):
        for dimension, length in enumerate(value.shape):
            place = (*path, dimension)
            if length == batch and place not in but:
                shown = value.index_select(dimension, torch.tensor(rows, device=value.device))
                yield place, shown, value.narrow(dimension, 0, len(rows))
        return
    if isinstance(value, (list, tuple)):
        if len(value) == batch and (*path, "entries") not in but:
            yield (*path, "entries"), [value[row] for row in rows], list(value[: len(rows)])
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts(item, rows, batch, but, (*path, key))


def _are_alike(some: object, others: object) -> bool:
    pairs = zip(pytree.tree_leaves(some), pytree.tree_leaves(others), strict=False)
    return pytree.tree_structure(some) == pytree.tree_structure(others) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is b or a == b
        for a, b in pairs
    )


def with_rows(whole: torch.Tensor, rows: Sequence[int], part: torch.Tensor) -> torch.Tensor:
    """A copy of `whole` in which `rows` are those of `part`."""
    return whole.index_copy(0, torch.tensor(rows, device=whole.device), part)


def flattened(result: Any, batch: int) -> tuple[list[Any], Any]:
    """The leaves of a denoiser's result, and what puts them together again (`unflattened`).

    A list of one tensor of the same shape for each row, as Z-Image returns, is one leaf: those tensors, stacked.
    """

    def is_rows(node: Any) -> bool:
        is_list = isinstance(node, list) and len(node) == batch
        return is_list and all(isinstance(each, torch.Tensor) and each.shape == node[0].shape for each in node)

    leaves, structure = pytree.tree_flatten(result, is_leaf=is_rows)
    lists = [isinstance(leaf, list) for leaf in leaves]
    stacked = [torch.stack(leaf) if is_list else leaf for leaf, is_list in zip(leaves, lists, strict=True)]
    return stacked, (structure, lists)


def unflattened(leaves: Sequence[Any], form: Any) -> Any:
    """A result of these leaves."""
    structure, lists = form
    parts = [list(leaf.unbind()) if is_list else leaf for leaf, is_list in zip(leaves, lists, strict=True)]
    return pytree.tree_unflatten(parts, structure)
