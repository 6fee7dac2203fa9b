"""Embeddings that outlive the process: keys and values of the outer store."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch

from omnireuse.prompts.checksum import parts_checksum
from omnireuse.prompts.entry import CACHE_MISS
from omnireuse.prompts.keys import PromptKey, digest_of
from omnireuse.prompts.watch import EncoderWatch
from omnireuse.stores.tier import Tier, TieredStore
from omnireuse.stores.trees import flatten, unflatten

__all__ = ["Outside"]

logger = logging.getLogger("omnireuse")

_FORMAT = "3"


class Outside:
    """The outer store of one pipeline, namespaced by model, library versions and the content of its encoders."""

    def __init__(
        self, store: Tier | TieredStore, tag: str | None, watch: EncoderWatch, pipeline: Callable[[], Any]
    ) -> None:
        self._store, self._tag, self._watch, self._pipeline = store, tag, watch, pipeline
        self._namespaces: dict[int, str] = {}

    def lookup(self, key: PromptKey) -> Any:
        """The value with its tensors where the direct call would have put them; ``CACHE_MISS`` without one."""
        found = self._store.lookup(_name(key), CACHE_MISS, namespace=self._namespace(key))
        if found is CACHE_MISS:
            return CACHE_MISS
        value, follows = found
        skeleton, leaves = flatten(value)
        pairs: list[Any] = list(zip(leaves, follows, strict=True))
        return unflatten(skeleton, [leaf.to(key.target) if goes else leaf for leaf, goes in pairs])

    def put(self, key: PromptKey, value: Any) -> None:
        """Keep ``value``; the store counts what it cannot take."""
        _, leaves = flatten(value, opaque=True)
        follows = [isinstance(leaf, torch.Tensor) and leaf.device == key.target for leaf in leaves]
        self._store.put(_name(key), (value, follows), namespace=self._namespace(key))

    def _namespace(self, key: PromptKey) -> str:
        epoch = key[0][0]
        if epoch not in self._namespaces:
            pipeline = self._pipeline()
            libraries = [getattr(sys.modules.get(name), "__version__", None) for name in ("diffusers", "transformers")]
            kind = f"{type(pipeline).__module__}.{type(pipeline).__qualname__}"
            about = f"{_FORMAT} {kind} {torch.__version__} {libraries}".encode()
            content = digest_of(about, parts_checksum(self._watch.parts(pipeline)).encode()).hex()
            # Only the newest is needed: an older epoch never comes back.
            self._namespaces = {epoch: f"{self._tag or kind}:{content}"}
            logger.info("prompt embeddings of this model are kept outside under %s", self._namespaces[epoch])
        return self._namespaces[epoch]


def _name(key: PromptKey) -> str:
    # The epoch is a count of this process, and the namespace has what it stands for; devices of one kind share values.
    state, target, *arguments = key
    return digest_of(repr((state[1:], None if target is None else target.type, arguments)).encode()).hex()
