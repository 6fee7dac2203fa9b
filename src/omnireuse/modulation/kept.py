"""Tables outside the process: one record for each module, named by the content of its weights."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING, Any

import torch

from omnireuse.prompts.checksum import tensor_checksum
from omnireuse.prompts.keys import digest_of
from omnireuse.stores.tier import Tier, TieredStore

if TYPE_CHECKING:
    from omnireuse.modulation.tables import Key, Table

__all__ = ["Kept"]

_FORMAT = "modulation 1"


class Kept:
    """The records of one module's rows, as some process has left them.

    Args:
        store: where they are.
        table: of the module. Cost: its weights are read once.
    """

    def __init__(self, store: Tier | TieredStore, table: Table) -> None:
        self._store = store
        module = table.module
        sums = [tensor_checksum(each) for each in table.weights.inner_tensors()]
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


_CPU = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"
