"""One stored result of `encode_prompt`: its own tensors, where they are kept, also outside of the process."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from omnireuse.fingerprints.plain import digest_of
from omnireuse.prompts.keys import PromptKey
from omnireuse.prompts.view import Scope
from omnireuse.stores.tier import Tier, TieredStore
from omnireuse.stores.trees import compact_copy, flatten, storage_bytes, unflatten

__all__ = ["CACHE_MISS", "Entry", "Left", "Outside", "StoredEncoding"]

Left = Sequence[tuple[str, Any]]
"""Values that an encoding stored, each with its path."""


class _Miss:
    """The one value that no encode can return."""

    def __repr__(self) -> str:
        return "_CACHE_MISS"

    def __reduce__(self) -> str:
        return "CACHE_MISS"  # pickled by name: there is only one


CACHE_MISS: Final = _Miss()


class Entry:
    """A value in storage of its own.

    Args:
        value: what ``encode_prompt`` returned; its tensors are copied, detached and compacted. Parts that nobody can
            look into are kept as they are: neither their bytes nor changes to them are noticed.
        label: names the entry in messages (the start of its prompt).
        key: under which it is stored.
        left: attributes that the encoding stored anew, each with its path.
    """

    def __init__(self, value: object, label: str, key: PromptKey, left: Left) -> None:
        self.label, self.key, self.left = label, key, left
        self._structure, leaves = flatten(value, opaque=True)
        # A tuple of tensors is handed out as it is; other containers are built anew, so that a caller may change them.
        self._is_fixed = _is_fixed(value)
        self._homes = [leaf.device if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        self._lock = threading.Lock()
        self._keep([compact_copy(leaf) for leaf in leaves], is_home=True)
        self.num_bytes = storage_bytes(self._leaves)

    def value(self) -> Any:
        """The stored value: fresh containers, and the stored tensors (read-only by contract), on their device again."""
        if not self._is_home:
            with self._lock, torch.inference_mode(False), torch.no_grad():
                pairs = zip(self._leaves, self._homes, strict=True)
                self._keep([leaf if home is None else leaf.to(home) for leaf, home in pairs], is_home=True)
        return unflatten(self._structure, self._leaves) if self._value is None else self._value

    def copy(self) -> Any:
        """The value with tensors of its own."""
        structure, leaves = flatten(self.value(), opaque=True)
        return unflatten(structure, [compact_copy(leaf) for leaf in leaves])

    def release(self) -> int:
        """Move the value to the host until it is asked for; the bytes freed. Cost: one copy, and a wait for it."""
        with self._lock:
            freed = self.device_bytes
            if freed:
                self._keep([_to_host(leaf) for leaf in self._leaves], is_home=False)
            return freed

    @property
    def opaque_kinds(self) -> set[str]:
        """Names of the classes of parts that nobody can look into."""
        return self._structure.opaque_kinds

    @property
    def device_bytes(self) -> int:
        """Bytes held on an accelerator now."""
        return storage_bytes([leaf for leaf in self._leaves if is_on_accelerator(leaf)]) if self._is_home else 0

    def find_mutation(self) -> str | None:
        """The tensor that was changed in place since it was stored, in words, or None."""
        leaves, versions = self._leaves, self._versions
        for i, leaf in enumerate(leaves):
            if versions[i] is not None and leaf._version != versions[i]:
                return f"tensor {i} {tuple(leaf.shape)} has version {leaf._version} instead of {versions[i]}"
        return None

    def _keep(self, leaves: list[Any], *, is_home: bool) -> None:
        for leaf in leaves:
            if isinstance(leaf, np.ndarray):
                leaf.flags.writeable = False
        self._versions = [leaf._version if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        self._leaves, self._is_home = leaves, is_home
        self._value: Any = unflatten(self._structure, leaves) if self._is_fixed else None


def is_on_accelerator(leaf: Any) -> bool:
    """Whether ``leaf`` takes memory of a device other than the CPU."""
    return isinstance(leaf, torch.Tensor) and leaf.device.type not in ("cpu", "meta")


def _to_host(leaf: Any) -> Any:
    """A copy in host memory, pinned if an accelerator can read it faster so."""
    if not is_on_accelerator(leaf):
        return compact_copy(leaf)
    with torch.inference_mode(False), torch.no_grad():
        host = leaf.detach().to("cpu", copy=True)
        return host.pin_memory() if torch.cuda.is_available() else host


def _is_fixed(value: Any) -> bool:
    """Whether a holder of the value can change its tensors alone."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    return value is None or isinstance(value, (torch.Tensor, np.ndarray))


_FORMAT = "6"


@dataclass(frozen=True)
class StoredEncoding:
    """One stored result.

    Args:
        ran, own: what counts for the call, see `Scope`.
        content: digest of all of that.
        left: what the encoding stored anew, see `Entry`.
        value: what it returned, on the CPU.
        follows: for each tensor, whether it was on the device that the call wanted.
    """

    ran: Sequence[str]
    own: Sequence[str]
    content: str
    left: Sequence[Any]
    value: Any
    follows: Sequence[bool]

    def value_on(self, device: torch.device | None) -> Any:
        """The value with its tensors where the direct call would have put them."""
        skeleton, leaves = flatten(self.value)
        pairs: list[Any] = list(zip(leaves, self.follows, strict=True))
        return unflatten(skeleton, [leaf.to(device) if goes else leaf for leaf, goes in pairs])


class Outside:
    """The outer store of one pipeline, namespaced by model and library versions. A record is served only if
    what counts for its call has the same content."""

    def __init__(self, store: Tier | TieredStore, tag: str | None) -> None:
        self._store, self._tag = store, tag

    def lookup(self, pipeline: object, arguments: PromptKey) -> StoredEncoding | None:
        """What some process kept for these arguments."""
        found = self._store.lookup(_name(arguments), None, namespace=self._namespace(pipeline))
        return None if found is None else StoredEncoding(*found)

    def put(self, pipeline: object, arguments: PromptKey, scope: Scope, content: str, entry: Entry) -> None:
        """Keep an entry; the store counts what it cannot take."""
        value, target = entry.value(), entry.key.target
        _, leaves = flatten(value, opaque=True)
        follows = [isinstance(leaf, torch.Tensor) and leaf.device == target for leaf in leaves]
        left = [list(each) for each in entry.left]
        record = [sorted(scope.ran), list(scope.own), content, left, value, follows]
        self._store.put(_name(arguments), record, namespace=self._namespace(pipeline))

    def _namespace(self, pipeline: object) -> str:
        kind = f"{type(pipeline).__module__}.{type(pipeline).__qualname__}"
        libraries = [getattr(sys.modules.get(name), "__version__", None) for name in ("diffusers", "transformers")]
        source = getattr(getattr(pipeline, "config", None), "_name_or_path", None)
        about = f"{_FORMAT} {kind} {source} {torch.__version__} {libraries} {platform.python_version()}"
        return f"{self._tag or kind}:{digest_of(about.encode()).hex()}"


def _name(arguments: PromptKey) -> str:
    # Devices of one kind share values.
    target = arguments.target
    return digest_of(repr((None if target is None else target.type, arguments[2:])).encode()).hex()
