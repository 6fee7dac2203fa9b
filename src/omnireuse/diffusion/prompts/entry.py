"""One stored result of `encode_prompt`: its own tensors, where they are kept, and who was handed them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from types import CodeType
from typing import Any

import numpy as np
import torch

from omnireuse.core.stores.trees import Leaf, Node, Opaque, compact_copy, flatten, storage_bytes, unflatten
from omnireuse.diffusion.prompts.keys import digest_of

__all__ = ["Entry"]

_NUM_CONSUMERS = 4


class Entry:
    """A value in storage of its own.

    Args:
        value: what ``encode_prompt`` returned; its tensors are copied, detached and compacted here. Parts that nobody
            can look into are kept as they are, and neither their bytes nor changes to them are noticed.
        label: names the entry in messages (the start of its prompt).
        checksum: remember the bytes too, for :meth:`find_mutation`.
        placement: ``device``, ``cpu`` or ``both``; matters for tensors on an accelerator only.
        target: the device that the call asked for: tensors that are there follow a later call to another device.

    Raises:
        WrongTypeError: ``value`` holds something that can be read once (a generator).
    """

    def __init__(
        self,
        value: object,
        *,
        label: str = "",
        checksum: bool = False,
        placement: str = "device",
        target: torch.device | None = None,
    ) -> None:
        self.label = label
        self.consumers: deque[tuple[CodeType, int]] = deque(maxlen=_NUM_CONSUMERS)
        self._skeleton, leaves = flatten(value, opaque=True)
        self._is_fixed = _is_fixed(self._skeleton)
        self._checksum, self._placement = checksum, placement
        self._lock = threading.Lock()
        self._follows = [isinstance(leaf, torch.Tensor) and leaf.device == target for leaf in leaves]
        self._home = target
        is_away = any(map(is_on_accelerator, leaves))
        self._host: list[Any] | None = None
        if is_away and placement != "device":
            self._host = [_to_host(leaf) for leaf in leaves]
        self._leaves: list[Any] | None = None
        self._versions: list[int | None] = []
        self._digests: list[bytes] = []
        self._value: Any = None
        if self._host is None or placement == "both":
            self._settle([compact_copy(leaf) for leaf in leaves])
        self.num_bytes = storage_bytes(self._leaves or []) + storage_bytes(self._host or [])

    @property
    def opaque_kinds(self) -> set[str]:
        """Names of the classes of the parts that are kept as they are."""
        return set(_opaque_kinds(self._skeleton))

    def value(self, target: torch.device | None = None) -> Any:
        """The stored value itself: fresh containers, the stored tensors (read-only by contract).

        Tensors that followed the device of the first call follow ``target``. What was released comes back, and stays
        if the placement keeps it on the device.

        Raises:
            RuntimeError: ``target`` is no device of this machine.
        """
        away = target is not None and target != self._home
        leaves = self._leaves
        if leaves is None:
            with self._lock:
                leaves = self._leaves or [self._back(leaf, i, target) for i, leaf in enumerate(self._host or [])]
                if self._leaves is None and self._placement != "cpu" and not away:
                    self._settle(leaves)
                    if self._placement == "device":
                        self._host = None
        elif away:
            leaves = [leaf.to(target) if goes else leaf for leaf, goes in zip(leaves, self._follows, strict=True)]
        elif self._value is not None:
            return self._value
        return unflatten(self._skeleton, leaves)

    def copy(self, target: torch.device | None = None) -> Any:
        """The value with tensors of its own."""
        skeleton, leaves = flatten(self.value(target), opaque=True)
        return unflatten(skeleton, [compact_copy(leaf) for leaf in leaves])

    def release(self) -> int:
        """Free device memory: keep the value on the host until it is asked for. The bytes freed.

        Cost: one copy to the host and a wait for it, unless the host has one already.
        """
        with self._lock:
            leaves = self._leaves
            if leaves is None or not any(map(is_on_accelerator, leaves)):
                return 0
            freed = storage_bytes([leaf for leaf in leaves if is_on_accelerator(leaf)])
            self._host = self._host or [_to_host(leaf) for leaf in leaves]
            self._leaves = self._value = None
            return freed

    @property
    def device_bytes(self) -> int:
        """Bytes held on an accelerator now."""
        return storage_bytes([leaf for leaf in self._leaves or [] if is_on_accelerator(leaf)])

    def find_mutation(self) -> str | None:
        """Which tensor was changed in place since it was stored, in words; None if none was."""
        leaves, versions = self._leaves, self._versions
        if leaves is None:
            return None  # nobody was handed the host's copy
        for i, leaf in enumerate(leaves):
            if versions[i] is not None and leaf._version != versions[i]:
                return f"tensor {i} {tuple(leaf.shape)} has version {leaf._version} instead of {versions[i]}"
        if self._checksum:
            for i, leaf in enumerate(leaves):
                if _digest(leaf) != self._digests[i]:
                    return f"tensor {i} {tuple(leaf.shape)} has other bytes under the same version"
        return None

    def describe_consumers(self) -> str:
        """The places in code that were handed this entry last, newest first."""
        places = [f"{code.co_filename}:{line} in {code.co_name}" for code, line in reversed(self.consumers)]
        return ", ".join(dict.fromkeys(places)) or "nobody on record"

    def _settle(self, leaves: list[Any]) -> None:
        """Take ``leaves`` as the ones to hand out."""
        for leaf in leaves:
            if isinstance(leaf, np.ndarray):
                leaf.flags.writeable = False
        self._versions = [leaf._version if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        self._digests = [_digest(leaf) for leaf in leaves] if self._checksum else []
        self._leaves = leaves
        # A tuple of tensors can be handed out as it is; other containers are built anew: a caller's append is its own.
        self._value = unflatten(self._skeleton, leaves) if self._is_fixed else None

    def _back(self, leaf: Any, i: int, target: torch.device | None) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        home = (self._home if target is None else target) if self._follows[i] else None
        with torch.inference_mode(False), torch.no_grad():
            return leaf.clone() if home is None or home == leaf.device else leaf.to(home, non_blocking=True)


def is_on_accelerator(leaf: Any) -> bool:
    """Whether ``leaf`` takes memory of a device other than the CPU."""
    return isinstance(leaf, torch.Tensor) and leaf.device.type not in ("cpu", "meta")


def _to_host(leaf: Any) -> Any:
    """A copy in host memory, pinned where an accelerator can read it faster so."""
    if not is_on_accelerator(leaf):
        return compact_copy(leaf)
    with torch.inference_mode(False), torch.no_grad():
        host = leaf.detach().to("cpu", copy=True)
        return host.pin_memory() if torch.cuda.is_available() else host


def _digest(leaf: Any) -> bytes:
    array = leaf if isinstance(leaf, np.ndarray) else leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return digest_of(array.tobytes())


def _opaque_kinds(skeleton: Any) -> Iterator[str]:
    if isinstance(skeleton, Opaque):
        yield type(skeleton.value).__qualname__
    elif isinstance(skeleton, Node):
        for child in skeleton.children:
            yield from _opaque_kinds(child)


def _is_fixed(skeleton: Any) -> bool:
    """Whether nothing but the tensors could be changed by who holds the value."""
    if isinstance(skeleton, Node):
        return issubclass(skeleton.kind, tuple) and all(map(_is_fixed, skeleton.children))
    return isinstance(skeleton, Leaf) or skeleton is None
