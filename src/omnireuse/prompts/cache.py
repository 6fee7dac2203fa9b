"""The prompt-embedding cache: a bounded store of results, one encode per key at a time, and its counters."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from omnireuse.errors import WrongTypeError
from omnireuse.prompts.counts import Counts, checked
from omnireuse.prompts.entry import CACHE_MISS, Entry
from omnireuse.prompts.keys import PromptKey, as_key
from omnireuse.prompts.outside import Outside
from omnireuse.stores.flight import SingleFlight
from omnireuse.stores.memory import MemoryStore, check_budget
from omnireuse.stores.tier import Tier, TieredStore

__all__ = ["Loaded", "PromptCacheOptions", "PromptEmbedCache"]

logger = logging.getLogger("omnireuse")


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


Loaded: TypeAlias = tuple[Any, bool]
"""A value, and whether it may be stored: not if the encoders changed while it was computed."""


class PromptEmbedCache(Counts):
    """A thread-safe cache of what ``encode_prompt`` returns.

    Values are copied on the way in (detached, each tensor in storage of its own size) and read-only by contract on
    the way out. Any value is stored; a part in which tensors cannot be found is kept as it is.

    Args:
        max_size: most entries, at least 1; may be assigned.
        enabled: False lets every call of the wrapped ``encode_prompt`` through, uncounted; :meth:`get` and :meth:`put`
            work all the same. May be assigned.
        max_bytes: most bytes of tensor storage; a shorthand for the field of ``options``.
        options: everything else.

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
        super().__init__()
        options = options or PromptCacheOptions()
        self.options = options if max_bytes is None else replace(options, max_bytes=max_bytes)
        self.enabled = enabled
        self._max_size: int = checked("max_size", max_size, 1)
        self.store: MemoryStore[Entry] = MemoryStore(max_bytes=self.options.max_bytes, max_entries=max_size)
        self.outside: Outside | None = None
        """The store outside the process, as the wrapped pipeline sees it."""
        self._flights: SingleFlight[Entry | None] = SingleFlight()

    @property
    def max_size(self) -> int:
        """Most entries, at least 1; assigning a smaller one evicts at once."""
        return self._max_size

    @max_size.setter
    def max_size(self, max_size: int) -> None:
        self.store.resize(checked("max_size", max_size, 1))
        self._max_size = max_size

    def get(self, key: Hashable) -> Any:
        """The value of ``key``, or ``_CACHE_MISS``; counted."""
        value = self.find(as_key(key))
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
        ``outdated`` results were not stored because the encoders changed meanwhile, ``refused`` ones exceed the
        budget of bytes; ``unplaced`` hits could not be moved to the device of their call.
        """
        store = self.store
        held = {"num_bytes": store.num_bytes} | {name: store.counts[name] for name in ("evictions", "refused")}
        return {"size": len(store), "max_size": self.max_size} | self.counters() | held

    def release(self) -> int:
        """Free the entries' device memory, before the model sleeps; the bytes freed. Each comes back when asked for."""
        return sum(entry.release() for entry in self.store.snapshot().values())

    def device_bytes(self) -> int:
        """Bytes that the entries hold on an accelerator now."""
        return sum(entry.device_bytes for entry in self.store.snapshot().values())

    def drop_calls(self) -> None:
        """Drop every entry of a wrapped call: the encoders changed, and no key can reach it any more."""
        dropped = self.store.discard_if(lambda key: isinstance(key, PromptKey) and key[0] is not None)
        if dropped:
            logger.info("encoders changed: %d cached prompt embeddings dropped", dropped)

    def find(self, key: PromptKey, target: torch.device | None = None) -> Any:
        """The value of ``key`` or ``CACHE_MISS``, uncounted."""
        entry = self.store.lookup(key, None)
        return CACHE_MISS if entry is None else self._hand_out(key, entry, target)

    def keep(self, key: PromptKey, value: Any, label: str, target: torch.device | None = None) -> Entry:
        """Store a copy of ``value``, outside too if it comes from a call; its entry."""
        entry = self._keep_here(key, value, label, target)
        if self.outside is not None and key[0] is not None:
            self.outside.put(key, value, target)
        return entry

    def _keep_here(self, key: PromptKey, value: Any, label: str, target: torch.device | None) -> Entry:
        entry = Entry(value, label, target)
        if entry.opaque_kinds:
            kinds = ", ".join(sorted(entry.opaque_kinds))
            logger.info("prompt-embedding cache: %s holds %s, kept as it is: its bytes are not counted", label, kinds)
        if not self.store.put(key, entry, entry.num_bytes):
            budget = self.options.max_bytes
            logger.warning(
                "prompt embedding %s not stored: %d bytes exceed max_bytes=%s", label, entry.num_bytes, budget
            )
        return entry

    def fetch(
        self,
        labels: Mapping[PromptKey, str],
        load: Callable[[list[PromptKey]], Mapping[PromptKey, Loaded]],
        target: torch.device | None = None,
    ) -> dict[PromptKey, Any]:
        """The values of keys, found or loaded. Each is loaded once, however many threads ask for it.

        Args:
            load: gives the values of those keys that nobody else is loading.
        """
        values = {key: self.find(key, target) for key in labels}
        own: dict[PromptKey, Any] = {}
        led: set[PromptKey] = set()

        def lead(keys: list[PromptKey]) -> dict[PromptKey, Entry | None]:
            led.update(keys)
            entries = {key: self._stored(key, labels[key], target) for key in keys}
            absent = [key for key in keys if entries[key] is None]
            for key, loaded in (load(absent) if absent else {}).items():
                own[key] = loaded[0]
                entries[key] = self._settle(key, loaded, labels[key], target)
            return entries

        missing = [key for key, value in values.items() if value is CACHE_MISS]
        for key, entry in (self._flights.run_many(missing, lead) if missing else {}).items():
            # The loader of a value gets the encode's own tensors: the store has copies.
            values[key] = own[key] if key in own else self._shared(key, entry, target, waited=key not in led)
            if values[key] is CACHE_MISS:
                values[key] = load([key])[key][0]
        return values

    async def fetch_async(
        self, key: PromptKey, label: str, load: Callable[[], Awaitable[Loaded]], target: torch.device | None
    ) -> Any:
        """As :meth:`fetch` for one key and a coroutine function. A store outside is asked in another thread."""
        own: list[Any] = []

        async def lead() -> Entry | None:
            stored = functools.partial(self._stored, key, label, target)
            entry = stored() if self.outside is None else await asyncio.to_thread(stored)
            if entry is None:
                loaded = await load()
                own.append(loaded[0])
                settle = functools.partial(self._settle, key, loaded, label, target)
                entry = settle() if self.outside is None else await asyncio.to_thread(settle)
            return entry

        entry, led = await self._flights.run_async(key, lead)
        value = own[0] if own else self._shared(key, entry, target, waited=not led)
        return (await load())[0] if value is CACHE_MISS else value

    def _stored(self, key: PromptKey, label: str, target: torch.device | None) -> Entry | None:
        """The value that another leader stored between a call's lookup and flight, or that is outside."""
        entry = self.store.lookup(key, None)
        if entry is not None or self.outside is None:
            return entry
        value = self.outside.lookup(key, target)
        if value is CACHE_MISS:
            return None
        self.add("outside_hits")
        return self._keep_here(key, value, label, target)

    def _settle(self, key: PromptKey, loaded: Loaded, label: str, target: torch.device | None) -> Entry | None:
        """The entry of a loaded value; None if it cannot be shared, and each call must make its own."""
        value, is_current = loaded
        try:
            if is_current:
                return self.keep(key, value, label, target)
            self.add("outdated")
            return Entry(value, label, target)  # for those who wait
        except WrongTypeError as error:
            self.bypass("result")
            logger.warning("prompt-embedding cache: result of encode_prompt(%s) not stored: %s", label, error)
            return None

    def _shared(self, key: PromptKey, entry: Entry | None, target: torch.device | None, *, waited: bool) -> Any:
        """A value that another call encoded."""
        value = CACHE_MISS if entry is None else self._hand_out(key, entry, target)
        self.add("coalesced", waited and value is not CACHE_MISS)
        return value

    def _hand_out(self, key: PromptKey, entry: Entry, target: torch.device | None) -> Any:
        mutation = entry.find_mutation()
        if mutation is None:
            try:
                return entry.copy(target) if self.options.copy_on_hit else entry.value(target)
            except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
                self.add("unplaced")
                logger.warning("prompt embedding %s cannot be moved to %s: %s", entry.label, target, error)
        else:
            self.add("mutated")
            logger.warning(
                "prompt embedding %r was changed in place after it was stored (%s); it is dropped and encoded again; "
                "clone it before changing it, or install the cache with copy_on_hit=True",
                entry.label, mutation,
            )  # fmt: skip
        self.store.discard(key)  # the encode that follows takes its place
        return CACHE_MISS
