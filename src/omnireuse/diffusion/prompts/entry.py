"""One stored result of `encode_prompt`: its own tensors, and who was handed them."""

from __future__ import annotations

from collections import deque
from types import CodeType
from typing import Any

import numpy as np
import torch

from omnireuse.core.stores.trees import Leaf, Node, compact_copy, flatten, storage_bytes, unflatten
from omnireuse.diffusion.prompts.keys import digest_of

__all__ = ["Entry"]

_NUM_CONSUMERS = 4


class Entry:
    """A value in storage of its own.

    Args:
        value: what ``encode_prompt`` returned; copied, detached and compacted here.
        label: names the entry in messages (the start of its prompt).
        checksum: remember the bytes too, for :meth:`find_mutation`.

    Raises:
        WrongTypeError: ``value`` is not made of dense tensors and plain values.
    """

    __slots__ = ("_checksums", "_skeleton", "_value", "_versions", "consumers", "label", "leaves", "num_bytes")

    def __init__(self, value: object, *, label: str = "", checksum: bool = False) -> None:
        self._skeleton, leaves = flatten(value)
        self.leaves: list[Any] = [compact_copy(leaf) for leaf in leaves]
        for leaf in self.leaves:
            if isinstance(leaf, np.ndarray):
                leaf.flags.writeable = False
        self._versions = [_version(leaf) for leaf in self.leaves]
        self._checksums = [_digest(leaf) for leaf in self.leaves] if checksum else None
        self.num_bytes = storage_bytes(self.leaves)
        self.label = label
        self.consumers: deque[tuple[CodeType, int]] = deque(maxlen=_NUM_CONSUMERS)
        # A tuple of tensors can be handed out as it is; lists and dicts are built anew, so that a caller's append is
        # its own.
        self._value = unflatten(self._skeleton, self.leaves) if _is_fixed(self._skeleton) else None

    def value(self) -> Any:
        """The stored value itself: fresh containers, the stored tensors (read-only by contract)."""
        return self._value if self._value is not None else unflatten(self._skeleton, self.leaves)

    def copy(self) -> Any:
        """The value with tensors of its own."""
        return unflatten(self._skeleton, [compact_copy(leaf) for leaf in self.leaves])

    def find_mutation(self) -> str | None:
        """Which tensor was changed in place since it was stored, in words; None if none was."""
        for i, (leaf, version) in enumerate(zip(self.leaves, self._versions, strict=True)):
            if version is not None and leaf._version != version:
                return f"tensor {i} {tuple(leaf.shape)} has version {leaf._version} instead of {version}"
        if self._checksums is not None:
            for i, (leaf, digest) in enumerate(zip(self.leaves, self._checksums, strict=True)):
                if _digest(leaf) != digest:
                    return f"tensor {i} {tuple(leaf.shape)} has other bytes under the same version"
        return None

    def describe_consumers(self) -> str:
        """The places in code that were handed this entry last, newest first."""
        places = [f"{code.co_filename}:{line} in {code.co_name}" for code, line in reversed(self.consumers)]
        return ", ".join(dict.fromkeys(places)) or "nobody on record"


def _version(leaf: Any) -> int | None:
    return leaf._version if isinstance(leaf, torch.Tensor) else None


def _digest(leaf: Any) -> bytes:
    array = leaf if isinstance(leaf, np.ndarray) else leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy()
    return digest_of(array.tobytes())


def _is_fixed(skeleton: Any) -> bool:
    """Whether nothing but the tensors could be changed by who holds the value."""
    if isinstance(skeleton, Node):
        return (
            isinstance(skeleton.kind, type)
            and issubclass(skeleton.kind, tuple)
            and all(map(_is_fixed, skeleton.children))
        )
    return isinstance(skeleton, Leaf) or skeleton is None
