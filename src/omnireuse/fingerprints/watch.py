"""Objects that are compared with what they were, in microseconds.

`gc.get_referents` lists what many objects refer to in one call: the class, attributes, hooks, layers and weights of
each layer of an encoder. As long as this list is the same, and every tensor has its version and address, nothing
changed.
"""

from __future__ import annotations

import gc
import itertools
import operator
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Watch", "suspect_stepped"]

_alive: weakref.WeakSet[Watch] = weakref.WeakSet()
_lock = threading.Lock()


class Watch:
    """A set of objects at one moment. They are added to its lists; then `start` notes what they are.

    Attributes:
        tensors: known by version (if they count their changes, as those of inference mode do not) and by address.
        layers: dicts and modules, known by what they refer to.
        empty: containers that hold nothing.
        objects: known by what they refer to, and by its types.
        tables: dicts and lists, known by their keys or items.
        probes: functions, each with what it is called for.
        suspects: ids of tensors that may have another content at the same version and address.
        versions, addresses: those of the tensors at the start.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.layers: list[Any] = []
        self.empty: list[Any] = []
        self.objects: list[Any] = []
        self.tables: list[Any] = []
        self.probes: list[tuple[Callable[[Any], Any], Any]] = []
        self.suspects: set[int] = set()
        self.versions: list[int | None] = []
        self.addresses: list[int | None] = []
        self._counted: list[torch.Tensor] = []
        self._looks: list[tuple[Callable[[Any], Any], Any, Any]] = []
        self._storages: list[Any] = []

    def start(self) -> None:
        """Note what all of them are now."""
        with _lock:
            _alive.add(self)
        with torch._C.DisableTorchFunction():
            self.versions = [None if each.is_inference() else each._version for each in self.tensors]
            self.addresses = [_address(each) for each in self.tensors]
            self._counted = [each for each, known in zip(self.tensors, self.versions, strict=True) if known is not None]
            placed = [each for each, known in zip(self.tensors, self.addresses, strict=True) if known is not None]
            self._storages = [self._until_freed(tensor) for tensor in placed]
            looks: list[tuple[Callable[[Any], Any], list[Any]]] = [
                (_versions, self._counted),
                (_addresses, placed),
                (_layers, self.layers),
                (any, self.empty),
                (_objects, self.objects),
                (_keys, self.tables),
                (_probed, self.probes),
            ]
            self._looks = [(look, things, look(things)) for look, things in looks if things]

    def holds(self) -> bool:
        """Whether all is as it was. Cost: 0.4 us for each tensor of a transformer, its layer included."""
        if self.suspects:
            return False
        try:
            with torch._C.DisableTorchFunction():
                for look, things, was in self._looks:
                    if look(things) != was:
                        return False
        except Exception:  # what cannot be compared, or cannot be read any more, is not the same
            return False
        return True

    @property
    def is_written(self) -> bool:
        """Whether a tensor has another version."""
        return [each._version for each in self._counted] != [each for each in self.versions if each is not None]

    def _until_freed(self, tensor: torch.Tensor) -> Any:
        """Suspects a tensor once its memory is free, because other content may come to the same address."""
        suspects, name = self.suspects, id(tensor)
        return weakref.ref(tensor.untyped_storage(), lambda _: suspects.add(name))

    def clear(self) -> None:
        """Keep nothing alive any more. It holds no longer."""
        self.suspects.add(0)
        for each in vars(self).values():
            if isinstance(each, list):
                each.clear()


def suspect_stepped(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """A hook after the steps of all optimizers: a fused one changes weights without a new version (torch 2.13)."""
    stepped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    with _lock:
        for watch in _alive:
            watch.suspects |= stepped.intersection(map(id, watch.tensors))


_version = operator.attrgetter("_version")


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    return list(map(_version, tensors))


def _addresses(tensors: list[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _address(tensor: torch.Tensor) -> int | None:
    """None for one that has no memory of its own: on the meta device, sparse or packed."""
    try:
        return None if tensor.is_meta else tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # torch raises either, by layout
        return None


def _layers(layers: list[Any]) -> list[Any]:
    return gc.get_referents(*layers)


def _objects(objects: list[Any]) -> tuple[list[Any], list[type]]:
    values = gc.get_referents(*objects)
    return values, list(map(type, values))


def _keys(tables: list[Any]) -> list[Any]:
    return list(itertools.chain.from_iterable(tables))


def _probed(probes: list[tuple[Callable[[Any], Any], Any]]) -> list[Any]:
    return [look(thing) for look, thing in probes]
