"""Values made of tensors: detach, compact, count and copy them through nested tuples, lists and dicts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from omnireuse.errors import WrongTypeError

__all__ = ["Skeleton", "compact_copy", "flatten", "storage_bytes", "unflatten"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MAX_DEPTH = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """The place of tensor number ``index`` in a skeleton."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A container in a skeleton: its class, the keys or field names (None for sequences) and the children."""

    kind: type
    names: tuple[Any, ...] | None
    children: tuple[Any, ...]


Skeleton = Any
"""A value with :class:`Leaf` in place of every tensor and array, and :class:`Node` in place of every container."""


def flatten(value: object) -> tuple[Skeleton, list[torch.Tensor | np.ndarray[Any, Any]]]:
    """Split ``value`` into its skeleton and its tensors, in order; a tensor that occurs twice is one leaf.

    Served: dense tensors, numpy arrays without objects, plain scalars, and tuples, named tuples, lists, dicts (and
    mapping classes that are built from a dict, such as ``transformers`` outputs) of those.

    Raises:
        WrongTypeError: anything else (a generator, a sparse tensor, a module), named with its place.
    """
    leaves: list[Any] = []
    seen: dict[int, Leaf] = {}
    return _flatten(value, "value", leaves, seen, 0), leaves


def _flatten(value: Any, where: str, leaves: list[Any], seen: dict[int, Leaf], depth: int) -> Skeleton:
    if depth > _MAX_DEPTH:
        raise WrongTypeError(f"{where}: nested deeper than {_MAX_DEPTH} or within itself; cannot be stored")
    kind = type(value)
    if kind in _PLAIN:
        return value
    if _is_leaf(value):
        if id(value) not in seen:
            seen[id(value)] = Leaf(len(leaves))
            leaves.append(value)
        return seen[id(value)]
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        inner = (_flatten(v, f"{where}[{i}]", leaves, seen, depth + 1) for i, v in enumerate(value))
        return Node(kind, None, tuple(inner))
    if kind is dict or (isinstance(value, dict) and dataclasses.is_dataclass(value)) or _is_encoding(value):
        items = dict(value.items())
        if not all(type(k) in _PLAIN for k in items):
            raise WrongTypeError(f"{where}: dict with a key that is not plain; cannot be stored")
        inner = (_flatten(v, f"{where}[{k!r}]", leaves, seen, depth + 1) for k, v in items.items())
        return Node(kind, tuple(items), tuple(inner))
    raise WrongTypeError(f"{where}: must be made of dense tensors and plain values, got {kind.__qualname__}")


def _is_leaf(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and not value.dtype.hasobject
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_nested


def _is_encoding(value: Any) -> bool:
    # transformers.BatchEncoding is a UserDict: duck-typed, so that this module needs no transformers.
    return type(value).__name__ in ("BatchEncoding", "BatchFeature") and callable(getattr(value, "items", None))


def unflatten(skeleton: Skeleton, leaves: list[Any]) -> Any:
    """Build the value again: fresh containers around the given leaves."""
    if type(skeleton) is Leaf:
        return leaves[skeleton.index]
    if type(skeleton) is not Node:
        return skeleton
    children = [unflatten(child, leaves) for child in skeleton.children]
    if skeleton.names is not None:
        items = dict(zip(skeleton.names, children, strict=True))
        return skeleton.kind(**items) if dataclasses.is_dataclass(skeleton.kind) else skeleton.kind(items)
    if skeleton.kind in (tuple, list):
        return skeleton.kind(children)
    return skeleton.kind(*children)


def compact_copy(leaf: Any) -> Any:
    """A copy of a tensor or array that shares nothing: detached, in storage of its own size, with a version counter.

    A view of a large base thus does not keep the base alive. The copy is made outside inference mode, because an
    inference tensor has no version counter, and that counter is how a change in place is noticed later.
    """
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    with torch.inference_mode(False), torch.no_grad():
        copy = leaf.detach().clone()
        # clone keeps the strides of a dense tensor; an overlapping or gappy one it packs.
        return copy if copy.untyped_storage().nbytes() == copy.nbytes else copy.contiguous().clone()


def storage_bytes(leaves: list[Any]) -> int:
    """Bytes of the storages behind ``leaves``, each storage once (a view counts its whole base)."""
    storages: dict[Any, int] = {}
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            owner = leaf
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            storages[id(owner)] = owner.nbytes
        else:
            storage = leaf.untyped_storage()
            storages[(leaf.device, storage.data_ptr() or id(leaf))] = storage.nbytes()
    return sum(storages.values())
