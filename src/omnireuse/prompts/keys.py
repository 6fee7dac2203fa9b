"""Keys of calls: equal exactly when types and values are."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import torch

from omnireuse.fingerprints.plain import UnkeyableError, freeze

__all__ = ["PromptKey", "as_key", "is_embeds_name"]

_EMBEDS = re.compile(r"_embeds(_|$)")


class PromptKey(tuple[Any, ...]):
    """A key that is already frozen: the state of what the encoding reads, the device of the result, then the arguments.

    The state is None for keys of :meth:`PromptEmbedCache.put`, which have no device.
    """

    __slots__ = ()

    @property
    def target(self) -> torch.device | None:
        """The device that the call wants its tensors on."""
        return self[1]  # type: ignore[no-any-return]  # by construction


def as_key(key: Hashable) -> PromptKey:
    """``key`` told apart by type as well as value; an object with its own equality stays as it is."""
    if type(key) is PromptKey:
        return key
    try:
        return PromptKey((None, None, freeze(key)))
    except UnkeyableError:
        return PromptKey((None, None, type(key), key))


def is_embeds_name(name: str) -> bool:
    """Whether an argument of this name carries ready embeddings or their mask."""
    return _EMBEDS.search(name) is not None
