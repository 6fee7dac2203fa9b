"""Embeddings that outlive the process, each with what its encoding read."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.prompts.keys import PromptKey, digest_of
from omnireuse.prompts.reading import Reading
from omnireuse.stores.tier import Tier, TieredStore
from omnireuse.stores.trees import flatten, unflatten

__all__ = ["Outside", "Record"]

_FORMAT = "4"


@dataclass(frozen=True)
class Record:
    """One stored result.

    Args:
        names: attributes that its encoding read.
        whole: paths of the modules that it used.
        content: digest of all of that.
        left: attributes that the encoding set.
        value: what it returned, on the CPU.
        follows: for each tensor, whether it was on the device that the call wanted.
    """

    names: Sequence[str]
    whole: Sequence[str]
    content: str
    left: Sequence[tuple[str, Any]]
    value: Any
    follows: Sequence[bool]

    def value_on(self, device: torch.device | None) -> Any:
        """The value with its tensors where the direct call would have put them."""
        skeleton, leaves = flatten(self.value)
        pairs: list[Any] = list(zip(leaves, self.follows, strict=True))
        return unflatten(skeleton, [leaf.to(device) if goes else leaf for leaf, goes in pairs])


class Outside:
    """The outer store of one pipeline, namespaced by model and library versions. A record is served only where the same
    names hold the same content."""

    def __init__(self, store: Tier | TieredStore, tag: str | None) -> None:
        self._store, self._tag = store, tag

    def lookup(self, pipeline: object, arguments: PromptKey) -> Record | None:
        """What some process kept for these arguments."""
        found = self._store.lookup(_name(arguments), None, namespace=self._namespace(pipeline))
        return None if found is None else Record(*found)

    def put(
        self,
        pipeline: object,
        arguments: PromptKey,
        reading: Reading,
        content: str,
        value: Any,
        left: Sequence[tuple[str, Any]],
        target: torch.device | None,
    ) -> None:
        """Keep ``value``; the store counts what it cannot take."""
        _, leaves = flatten(value, opaque=True)
        follows = [isinstance(leaf, torch.Tensor) and leaf.device == target for leaf in leaves]
        record = [*reading.names], sorted(reading.whole), content, [*left], value, follows
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
