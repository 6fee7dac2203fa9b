"""The rows of one module: how they are named, and the record of them outside the process."""

from __future__ import annotations

import platform
import sys
import threading
from typing import Any, NamedTuple

import torch
from torch import nn

from omnireuse.fingerprints.checksums import checksums
from omnireuse.fingerprints.plain import digest_of
from omnireuse.modulation.weights import Weights
from omnireuse.stores.tier import Tier, TieredStore

__all__ = ["Key", "OutsideRows", "Table"]

_FORMAT = "modulation 1"
_CPU = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"


class Key(NamedTuple):
    """The name of a row. For the tables after this one it is also the value of the row's output."""

    table: Table
    epoch: int
    settings: tuple[Any, ...]
    value: Any

    @property
    def begin(self) -> Any:
        """The value that was read, at the beginning of all that leads to this row."""
        return self.value.begin if isinstance(self.value, Key) else self.value

    @property
    def device(self) -> torch.device:
        """On which the row was computed."""
        return self.begin[-2]  # type: ignore[no-any-return]  # by construction


class Table:
    """The rows of one module: a projection, or an activation on the way to one.

    Attributes:
        weights: of the module.
        epoch: how often they have changed.
        content: of the weights by which the rows were computed: `contents` of all.
        alignment: of these weights, by device.
        kept: what is outside the process of it; None if nobody has looked yet.
        lock: held while weights that are away are brought in.
        is_chosen: whether its first call has shown that the table is worth keeping.
        tail: what the module returns after its output; layers of engines return None for a bias that they have added.
        sees_tokens: whether the module was called with something else than one small tensor.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.module, self.weights = name, module, Weights(module)
        self.epoch = 0
        self.content: dict[bool, Any] = {}
        self.alignment: dict[torch.device, tuple[int, ...]] = {}
        self.kept: OutsideRows | None = None
        self.lock = threading.RLock()
        self.is_projection = bool(self.weights.parameters)
        self.is_chosen = self.sees_tokens = False
        self.tail: tuple[None, ...] = ()


class OutsideRows:
    """The records of one module's rows, as some process has left them.

    Args:
        store: where they are.
        table: of the module. Cost: its weights are read once.
    """

    def __init__(self, store: Tier | TieredStore, table: Table) -> None:
        self._store = store
        module = table.module
        sums = checksums(table.weights.inner_tensors())
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        plain = sorted(f"{name}={each!r}" for name, each in vars(module).items() if isinstance(each, (int, float, str)))
        version = getattr(sys.modules.get(kind.partition(".")[0]), "__version__", None)
        shapes = [(tuple(each.shape), str(each.dtype)) for each in table.weights.parameters]
        self._name = digest_of(
            repr((kind, version, plain, shapes, [*table.weights.alignment.values()], sums)).encode()
        ).hex()
        found = store.lookup(self._name, None, namespace=_FORMAT)
        self.outputs: dict[str, torch.Tensor] = {} if found is None else found

    def name_of(self, key: Key) -> str:
        """The name of a row that is the same in every process."""
        return digest_of(self._about(key).encode()).hex()

    def _about(self, key: Any) -> str:
        before = key.value
        if hasattr(before, "table"):  # the output of another module
            kept = before.table.kept
            return f"{key.settings} {kept and kept._name} {self._about(before)}"
        *shape, device, octets = before
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} {_CPU}"
        return f"{key.settings} {shape} {where} {digest_of(octets).hex()}"

    def save(self, rows: dict[str, torch.Tensor]) -> bool:
        """Keep these rows with those that are there; False if there is none that is new."""
        if rows.keys() <= self.outputs.keys():
            return False
        self.outputs |= rows
        return self._store.put(self._name, self.outputs, namespace=_FORMAT)
