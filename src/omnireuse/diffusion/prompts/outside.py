"""Embeddings that outlive the process: keys and values of the outer store."""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch

from omnireuse.core.stores.tier import Tier
from omnireuse.core.stores.tiered import TieredStore
from omnireuse.core.stores.trees import flatten, unflatten
from omnireuse.diffusion.prompts.counts import CACHE_MISS
from omnireuse.diffusion.prompts.fingerprint import fingerprint
from omnireuse.diffusion.prompts.keys import PromptKey, digest_of
from omnireuse.diffusion.prompts.watch import EncoderWatch
from omnireuse.errors import WrongTypeError

__all__ = ["Outside"]

logger = logging.getLogger("omnireuse")

_FORMAT = "1"


class Outside:
    """The outer store of one pipeline, namespaced by model, library versions and the content of its encoders.

    Args:
        store: the tier or tiers.
        tag: names the model, for people; the content decides.
    """

    def __init__(self, store: Tier | TieredStore, tag: str | None) -> None:
        self._store, self._tag = store, tag
        self._namespaces: dict[int, str] = {}

    def lookup(self, watch: EncoderWatch, pipeline: Any, key: PromptKey, target: torch.device | None) -> Any:
        """The value with its tensors where the direct call would have put them; ``CACHE_MISS`` without one."""
        found = self._store.lookup(_name(key), CACHE_MISS, namespace=self._namespace(watch, pipeline, key))
        if found is CACHE_MISS:
            return CACHE_MISS
        value, follows = found
        if target is None or target.type == "cpu":
            return value
        skeleton, leaves = flatten(value)
        placed = [leaf.to(target) if goes else leaf for leaf, goes in zip(leaves, follows, strict=True)]  # type: ignore[union-attr]  # the codec holds tensors only
        return unflatten(skeleton, placed)

    def put(self, watch: EncoderWatch, pipeline: Any, key: PromptKey, value: Any, target: torch.device | None) -> None:
        """Keep ``value``; the store counts what it cannot take."""
        try:
            _, leaves = flatten(value, opaque=True)
        except WrongTypeError:
            return  # counted and logged where the memory store refused it
        follows = [isinstance(leaf, torch.Tensor) and leaf.device == target for leaf in leaves]
        self._store.put(_name(key), (value, follows), namespace=self._namespace(watch, pipeline, key))

    def _namespace(self, watch: EncoderWatch, pipeline: Any, key: PromptKey) -> str:
        epoch = key[0][0]
        if epoch not in self._namespaces:
            diffusers = getattr(sys.modules.get("diffusers"), "__version__", None)
            transformers = getattr(sys.modules.get("transformers"), "__version__", None)
            kind = f"{type(pipeline).__module__}.{type(pipeline).__qualname__}"
            about = f"{_FORMAT} {kind} {torch.__version__} {diffusers} {transformers}".encode()
            content = digest_of(about, fingerprint(watch.parts(pipeline)).encode()).hex()
            # Only the newest is needed; an older epoch never comes back.
            self._namespaces = {epoch: f"{self._tag or kind}:{content}"}
            logger.info("prompt embeddings of this model are kept outside under %s", self._namespaces[epoch])
        return self._namespaces[epoch]


def _name(key: PromptKey) -> str:
    # The epoch is a count of this process; what it stands for is in the namespace.
    return digest_of(repr((key[0][1:], key[1:])).encode()).hex()
