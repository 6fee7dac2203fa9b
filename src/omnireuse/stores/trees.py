"""Nested values made of tensors: split them into structure and tensors, copy and measure them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from omnireuse import messages
from omnireuse.errors import WrongTypeError

__all__ = ["Structure", "compact_copy", "flatten", "storage_bytes", "unflatten"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    """The place of tensor number `index`."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Opaque:
    """An object that is taken as it is; equal to itself alone."""

    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """An instance of a dataclass, as a node of the tree."""

    kind: type
    fields: dict[str, Any]


def _make_record(children: Any, context: Any) -> Any:
    kind, names = context
    made: Any = object.__new__(kind)  # without its __init__, which may have work of its own to do
    for name, value in zip(names, children, strict=True):
        object.__setattr__(made, name, value)
    return made


pytree.register_pytree_node(
    _Record, lambda record: ([*record.fields.values()], (record.kind, (*record.fields,))), _make_record
)


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """A value without its tensors: its containers and plain values. Build the value again with `unflatten`."""

    spec: pytree.TreeSpec
    items: tuple[Any, ...]

    @property
    def opaque_kinds(self) -> set[str]:
        """Names of the classes of objects that are taken as they are."""
        return {type(item.value).__qualname__ for item in self.items if type(item) is _Opaque}


def flatten(value: object, *, opaque: bool = False) -> tuple[Structure, list[Any]]:
    """Split `value` into its structure and its tensors, in order; a tensor that occurs twice is one leaf.

    Supported: dense tensors, numpy arrays without objects and plain scalars, in tuples, named tuples, lists, dicts,
    dataclasses, and what is registered as a pytree, such as the outputs of diffusers and transformers.

    Args:
        opaque: take anything else as it is, except what can be read only once (a generator).
    """
    try:
        items, spec = pytree.tree_flatten(_open_records(value))
    except RecursionError:
        if not opaque:
            raise WrongTypeError("value: is nested too deeply or within itself; cannot be stored") from None
        items, spec = pytree.tree_flatten(_Opaque(value))
    leaves: list[Any] = []
    places: dict[int, _Leaf] = {}
    kept: list[Any] = []
    for item in items:
        if _is_leaf(item):
            if id(item) not in places:
                places[id(item)] = _Leaf(len(leaves))
                leaves.append(item)
            kept.append(places[id(item)])
        elif type(item) in (*_PLAIN, _Opaque):
            kept.append(item)
        elif opaque and not isinstance(item, Iterator):
            kept.append(_Opaque(item.detach() if isinstance(item, torch.Tensor) else item))
        else:
            raise WrongTypeError(messages.VALUE_NOT_DENSE, kind=type(item).__qualname__)
    return Structure(spec, tuple(kept)), leaves


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    """Build the value again: fresh containers around the given leaves."""
    items = (
        leaves[item.index] if type(item) is _Leaf else item.value if type(item) is _Opaque else item
        for item in structure.items
    )
    return pytree.tree_unflatten(items, structure.spec)


def _open_records(value: object) -> Any:
    """The value with a node of the tree for each dataclass that consists of its fields."""

    def opened(item: object) -> Any:
        if not dataclasses.is_dataclass(item) or isinstance(item, type) or type(item).__new__ is not object.__new__:
            return item
        names = [field.name for field in dataclasses.fields(item) if hasattr(item, field.name)]
        if len(names) < len(dataclasses.fields(item)) or getattr(item, "__dict__", {}).keys() - names:
            return item
        return _Record(type(item), {name: _open_records(getattr(item, name)) for name in names})

    return pytree.tree_map(opened, value)


def _is_leaf(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return type(value) is np.ndarray and not value.dtype.hasobject
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_nested


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


def storage_bytes(leaves: Iterable[Any]) -> int:
    """Return the bytes of the storages behind `leaves`, each storage once (a view counts its whole base)."""
    storages: dict[int, int] = {}
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            owner = leaf
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            storages[id(owner)] = owner.nbytes
        else:
            storage = leaf.untyped_storage()
            storages[storage._cdata] = storage.nbytes()  # not its address, which tensors without data share
    return sum(storages.values())
