"""Nested values made of tensors: split them into structure and tensors, copy and measure them."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from omnireuse.errors import WrongTypeError

__all__ = ["Opaque", "Skeleton", "compact_copy", "flatten", "storage_bytes", "unflatten"]

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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """An object in a skeleton that is taken as it is; equal to itself alone."""

    value: Any


Skeleton = Any
"""A value with :class:`Leaf` for every tensor and array, :class:`Node` for every container and :class:`Opaque` for
other objects where they are allowed."""


def flatten(value: object, *, opaque: bool = False) -> tuple[Skeleton, list[torch.Tensor | np.ndarray[Any, Any]]]:
    """Split ``value`` into its skeleton and its tensors, in order; a tensor that occurs twice is one leaf.

    Supported: dense tensors, numpy arrays without objects, plain scalars, and tuples, named tuples, lists, dicts (and
    mapping classes that are built from a dict, such as ``transformers`` outputs), dataclasses of those, and sets of
    plain scalars.

    Args:
        opaque: accept anything else as an :class:`Opaque`, except what can be read only once (a generator).

    Raises:
        WrongTypeError: anything else (a sparse tensor, a module), named with its place.
    """
    leaves: list[Any] = []
    seen: dict[int, Leaf] = {}
    return _flatten(value, "value", _Reading(leaves, seen, opaque), 0), leaves


@dataclasses.dataclass(frozen=True, slots=True)
class _Reading:
    leaves: list[Any]
    seen: dict[int, Leaf]
    opaque: bool

    def other(self, value: Any, problem: str) -> Opaque:
        if not self.opaque or isinstance(value, Iterator):
            raise WrongTypeError(problem)
        return Opaque(value.detach() if isinstance(value, torch.Tensor) else value)


def _flatten(value: Any, where: str, reading: _Reading, depth: int) -> Skeleton:
    if depth > _MAX_DEPTH:
        return reading.other(value, f"{where}: nested deeper than {_MAX_DEPTH} or within itself; cannot be stored")
    kind = type(value)
    if kind in _PLAIN:
        return value
    if _is_leaf(value):
        if id(value) not in reading.seen:
            reading.seen[id(value)] = Leaf(len(reading.leaves))
            reading.leaves.append(value)
        return reading.seen[id(value)]
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        inner = (_flatten(v, f"{where}[{i}]", reading, depth + 1) for i, v in enumerate(value))
        return Node(kind, None, tuple(inner))
    if kind in (set, frozenset) and all(type(element) in _PLAIN for element in value):
        return Node(kind, None, tuple(value))
    if (
        kind in (dict, OrderedDict)
        or (isinstance(value, dict) and dataclasses.is_dataclass(value))
        or _is_encoding(value)
    ):
        items = dict(value.items())
        if not all(type(k) in _PLAIN for k in items):
            return reading.other(value, f"{where}: dict with a key that is not plain; cannot be stored")
        inner = (_flatten(v, f"{where}[{k!r}]", reading, depth + 1) for k, v in items.items())
        return Node(kind, tuple(items), tuple(inner))
    if _is_record(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        inner = (_flatten(v, f"{where}.{name}", reading, depth + 1) for name, v in fields.items())
        return Node(kind, tuple(fields), tuple(inner))
    return reading.other(value, f"{where}: must be made of dense tensors and plain values, got {kind.__qualname__}")


def _is_leaf(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and not value.dtype.hasobject
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_nested


def _is_record(value: Any) -> bool:
    """Tell whether this is an instance of a dataclass that consists of its fields."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or type(value).__new__ is not object.__new__:
        return False
    names = {field.name for field in dataclasses.fields(value)}
    return all(hasattr(value, name) for name in names) and getattr(value, "__dict__", {}).keys() <= names


def _is_encoding(value: Any) -> bool:
    # transformers.BatchEncoding is a UserDict: duck-typed, so that this module needs no transformers.
    return type(value).__name__ in ("BatchEncoding", "BatchFeature") and callable(getattr(value, "items", None))


def unflatten(skeleton: Skeleton, leaves: list[Any]) -> Any:
    """Build the value again: fresh containers around the given leaves."""
    if type(skeleton) is Leaf:
        return leaves[skeleton.index]
    if type(skeleton) is Opaque:
        return skeleton.value
    if type(skeleton) is not Node:
        return skeleton
    children = [unflatten(child, leaves) for child in skeleton.children]
    if skeleton.names is not None:
        items = dict(zip(skeleton.names, children, strict=True))
        if not dataclasses.is_dataclass(skeleton.kind):
            return skeleton.kind(items)
        return skeleton.kind(**items) if issubclass(skeleton.kind, dict) else _record(skeleton.kind, items)
    if skeleton.kind in (tuple, list, set, frozenset):
        return skeleton.kind(children)
    return skeleton.kind(*children)


def _record(kind: type, items: dict[str, Any]) -> Any:
    # Without its __init__, which may have work of its own to do.
    made: Any = object.__new__(kind)
    for name, value in items.items():
        object.__setattr__(made, name, value)
    return made


def compact_copy(leaf: Any) -> Any:
    """Return a copy of a tensor or array: detached, in storage of its own size, with a version counter.

    It is made outside inference mode: an inference tensor has no version counter, which shows a change in place.
    """
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    with torch.inference_mode(False), torch.no_grad():
        copy = leaf.detach().clone()
        # clone keeps the strides of a dense tensor; an overlapping or gappy one it packs.
        return copy if copy.untyped_storage().nbytes() == copy.nbytes else copy.contiguous().clone()


def storage_bytes(leaves: list[Any]) -> int:
    """Return the bytes of the storages behind ``leaves``, each storage once (a view counts its whole base)."""
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
