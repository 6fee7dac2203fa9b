"""The prompt-embedding cache: a bounded store of results, one encode per key at a time, and its counters."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from omnireuse.base.validation import Range, check_value, is_whole
from omnireuse.prompts.entry import CACHE_MISS, Entry, Left
from omnireuse.prompts.keys import PromptKey, as_key
from omnireuse.stores.flight import SingleFlight
from omnireuse.stores.memory import MemoryStore, check_budget
from omnireuse.stores.tier import Tier, TieredStore

__all__ = ["PromptCacheOptions", "PromptEmbedCache"]

logger = logging.getLogger("omnireuse")

_COUNTERS = ("hits", "misses", "bypassed", "coalesced", "mutated", "outdated", "outside_hits")
_counting = threading.Lock()


_TO_STORE_NOTHING = "pass enabled=False to store nothing"
_SIZE = Range("be an integer of at least 1", partial(is_whole, least=1), _TO_STORE_NOTHING)


@dataclass(frozen=True, kw_only=True)
class PromptCacheOptions:
    """How a prompt-embedding cache behaves.

    Args:
        max_bytes: budget for the stored tensors in bytes of true storage; None for no limit beside ``max_size``.
        copy_on_hit: hand out copies, so that consumers may change them.
        outside: the tier or tiers behind the process; None for none.

    Raises:
        ConfigError: a value out of range.
    """

    max_bytes: int | None = None
    copy_on_hit: bool = False
    outside: Tier | TieredStore | None = None

    def __post_init__(self) -> None:
        check_budget("PromptCacheOptions", "max_bytes", self.max_bytes)


class PromptEmbedCache:
    """A thread-safe cache of what ``encode_prompt`` returns.

    Values are copied on the way in (detached, each tensor in storage of its own size) and read-only by contract on
    the way out. Any value is stored; a part in which tensors cannot be found is kept as it is.

    Args:
        max_size: most entries, at least 1; may be assigned.
        enabled: False lets every call of the wrapped ``encode_prompt`` through, uncounted; :meth:`get` and :meth:`put`
            work all the same. May be assigned.
        max_bytes: most bytes of tensor storage; a shorthand for the field of ``options``.
        options: everything else.

    Attributes:
        hits: calls served without an encode of their own.
        misses: encodes.
        bypassed: calls past the cache. These three may be assigned.
        bypassed_by: calls past the cache, by reason: one of :class:`~omnireuse.fingerprints.plain.UnkeyableError`;
            ``embeds`` (the caller brought embeddings), ``signature`` (``encode_prompt`` refuses the arguments),
            ``result`` (it returned something that can be read once), ``random`` (it drew random numbers), ``training``
            (it did, with an encoder in training mode), ``gradient`` (the result requires one), ``left`` (it left
            something that a hit cannot leave), ``stray`` (a module ran that no attribute leads to), ``compiled``
            (`torch.compile` compiled something meanwhile) or ``nested`` (called within another ``encode_prompt``).

    Raises:
        ConfigError: a size below 1.
    """

    def __init__(
        self,
        max_size: int = 32,
        enabled: bool = True,
        *,
        max_bytes: int | None = None,
        options: PromptCacheOptions | None = None,
    ) -> None:
        options = options or PromptCacheOptions()
        self.options = options if max_bytes is None else replace(options, max_bytes=max_bytes)
        self.enabled = enabled
        self.hits = self.misses = self.bypassed = 0
        self.coalesced = self.mutated = self.outdated = self.outside_hits = 0
        self.bypassed_by = Counter[str]()
        check_value("PromptEmbedCache", "max_size", max_size, _SIZE)
        self.store: MemoryStore[Entry] = MemoryStore(max_bytes=self.options.max_bytes, max_entries=max_size)
        self.flights: SingleFlight[Entry | None] = SingleFlight()
        """Encodes that go on now."""

    @property
    def max_size(self) -> int:
        """Most entries, at least 1; assigning a smaller one evicts at once."""
        return self.store.max_entries or 1

    @max_size.setter
    def max_size(self, max_size: int) -> None:
        check_value("PromptEmbedCache", "max_size", max_size, _SIZE)
        self.store.resize(max_size)

    def get(self, key: Hashable) -> Any:
        """The value of ``key``, or ``_CACHE_MISS``; counted."""
        entry = self.store.lookup(as_key(key), None)
        value = CACHE_MISS if entry is None else self.hand_out(entry)
        self.add("misses" if value is CACHE_MISS else "hits")
        return value

    def put(self, key: Hashable, value: Any) -> None:
        """Store a copy of ``value``. One that exceeds the whole byte budget is refused (and counted) alone.

        Raises:
            WrongTypeError: ``value`` holds something that can be read once (a generator).
        """
        self.keep(as_key(key), value, "a value")

    def clear(self) -> None:
        """Drop every entry; counters stay."""
        self.store.clear()

    def stats(self) -> dict[str, int]:
        """``size``, ``max_size``, ``hits``, ``misses`` and ``bypassed``."""
        details = self.details()
        return {name: details[name] for name in ("size", "max_size", "hits", "misses", "bypassed")}

    def details(self) -> dict[str, int]:
        """Every counter, and ``bypassed_<reason>``.

        ``coalesced`` waited for another call's encode; ``mutated`` entries were changed in place by a consumer;
        ``outdated`` results were not stored because what their encoding read changed meanwhile, ``refused`` ones exceed
        the budget of bytes.
        """
        store = self.store
        with _counting:
            counted = {name: getattr(self, name) for name in _COUNTERS}
            counted |= {f"bypassed_{reason}": number for reason, number in self.bypassed_by.items()}
        held = {"num_bytes": store.num_bytes} | {name: store.counts[name] for name in ("evictions", "refused")}
        return {"size": len(store), "max_size": self.max_size} | counted | held

    def release(self) -> int:
        """Free the entries' device memory, before the model sleeps; the bytes freed. Each comes back when asked for."""
        return sum(entry.release() for entry in self.store.snapshot().values())

    def device_bytes(self) -> int:
        """Bytes that the entries hold on an accelerator now."""
        return sum(entry.device_bytes for entry in self.store.snapshot().values())

    def add(self, name: str, number: int = 1) -> None:
        """Count ``number`` more of ``name``."""
        with _counting:
            setattr(self, name, getattr(self, name) + number)

    def bypass(self, reason: str, where: str = "") -> None:
        """Count a call past the cache; the first of each reason is said, if it is known ``where``."""
        with _counting:
            self.bypassed += 1
            self.bypassed_by[reason] += 1
            is_first = self.bypassed_by[reason] == 1
        if is_first and where:
            logger.warning(
                "prompt-embedding cache: a result is not stored (%s): %s; docs/prompt-embeddings.md", reason, where
            )

    def drop_calls(self, weights: bytes | None = None) -> None:
        """Drop the entries of wrapped calls, or those of weights that are gone: no key can reach them any more."""
        dropped = self.store.discard_if(lambda key: _is_of_call(key, weights))
        if dropped:
            logger.info("encoders changed: %d cached prompt embeddings dropped", dropped)

    def keep(self, key: PromptKey, value: Any, label: str, left: Left = ()) -> Entry:
        """Store a copy of ``value``, and what its encoding stored anew.

        Raises:
            WrongTypeError: it holds something that can be read once.
        """
        entry = Entry(value, label, key, left)
        if entry.opaque_kinds:
            kinds = ", ".join(sorted(entry.opaque_kinds))
            logger.info("prompt-embedding cache: %s holds %s, kept as it is: its bytes are not counted", label, kinds)
        if not self.store.put(key, entry, entry.num_bytes):
            size, budget = entry.num_bytes, self.options.max_bytes
            logger.warning("prompt embedding %s not stored: %d bytes exceed max_bytes=%s", label, size, budget)
        return entry

    def hand_out(self, entry: Entry) -> Any:
        """The value of an entry; ``CACHE_MISS`` if a consumer changed it."""
        mutation = entry.find_mutation()
        if mutation is None:
            return entry.copy() if self.options.copy_on_hit else entry.value()
        self.add("mutated")
        logger.warning(
            "prompt embedding %r was changed in place after it was stored (%s); it is dropped and encoded again; "
            "clone it before changing it, or install the cache with copy_on_hit=True",
            entry.label, mutation,
        )  # fmt: skip
        self.store.discard(entry.key)  # the encode that follows takes its place
        return CACHE_MISS


def _is_of_call(key: Hashable, weights: bytes | None) -> bool:
    state = key[0] if isinstance(key, PromptKey) else None
    return state is not None and weights in (None, state[1])
