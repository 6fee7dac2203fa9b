"""The prompt-embedding cache: a bounded store of results, one encode per key at a time, and its counters."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from types import FrameType
from typing import Any

import torch

from omnireuse.core.stores.flight import SingleFlight
from omnireuse.core.stores.memory import MemoryStore
from omnireuse.diffusion.prompts.counts import CACHE_MISS, CallCounters, Counts
from omnireuse.diffusion.prompts.entry import Entry
from omnireuse.diffusion.prompts.keys import PromptKey, as_key
from omnireuse.diffusion.prompts.options import PromptCacheOptions
from omnireuse.errors import ConfigError, StateError, WrongTypeError

__all__ = ["PromptEmbedCache"]

logger = logging.getLogger("omnireuse")


class PromptEmbedCache(CallCounters):
    """A thread-safe cache of what ``encode_prompt`` returns.

    Values are copied on the way in (detached, each tensor in storage of its own size) and read-only by contract on
    the way out. Any value is stored; a part in which tensors cannot be found is kept as it is. ``hits`` are calls
    served without an encode of their own, ``misses`` the encodes, ``bypassed`` the calls that no key can be made for,
    by reason in ``bypassed_by``; the three may be assigned.

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
        self.options = options or PromptCacheOptions()
        self.enabled, self._max_size = enabled, _checked_size(max_size)
        self.max_bytes = self.options.max_bytes if max_bytes is None else max_bytes
        self.store: MemoryStore[Entry] = MemoryStore(
            max_bytes=self.max_bytes,
            max_entries=max_size,
            eviction=self.options.eviction,
            ttl_s=self.options.ttl_s,
        )
        self.counts = Counts()
        self._flights: SingleFlight[_Loaded] = SingleFlight()

    @property
    def max_size(self) -> int:
        """Most entries, at least 1; assigning a smaller one evicts at once."""
        return self._max_size

    @max_size.setter
    def max_size(self, max_size: int) -> None:
        self.store.resize(_checked_size(max_size))
        self._max_size = max_size

    def get(self, key: Hashable) -> Any:
        """The value of ``key``, or ``_CACHE_MISS``; counted."""
        value = self.find(as_key(key))
        self.counts.add("misses" if value is CACHE_MISS else "hits")
        return value

    def put(self, key: Hashable, value: Any) -> None:
        """Store a copy of ``value``. One that exceeds the whole byte budget is refused (and counted) alone.

        Raises:
            WrongTypeError: ``value`` holds something that can be read once (a generator).
        """
        self._store(as_key(key), self._entry(value, "", None))

    def clear(self) -> None:
        """Drop every entry; counters stay."""
        self.store.clear()

    def stats(self) -> dict[str, int]:
        """``size``, ``max_size``, ``hits``, ``misses`` and ``bypassed``."""
        counts = self.counts.as_dict()
        held = {"size": len(self.store), "max_size": self.max_size}
        return held | {name: counts[name] for name in ("hits", "misses", "bypassed")}

    def details(self) -> dict[str, int]:
        """Every counter: those of :class:`~omnireuse.diffusion.prompts.counts.Counts` and of the store.

        ``refused`` are results larger than the byte budget, ``expired`` entries dropped for their age.
        """
        store = self.store.stats()
        held = {name: getattr(store, name) for name in ("num_bytes", "evictions", "refused", "expired")}
        return {"size": store.entries, "max_size": self.max_size} | self.counts.as_dict() | held

    def _entry(self, value: Any, label: str, target: torch.device | None) -> Entry:
        options = self.options
        entry = Entry(value, label=label, checksum=options.checksum, placement=options.placement, target=target)
        if kinds := entry.opaque_kinds:
            logger.info(
                "prompt-embedding cache: %s holds %s, which is kept as it is: its bytes are not counted",
                label or "a value",
                ", ".join(sorted(kinds)),
            )
        return entry

    def keep(self, key: PromptKey, value: Any, label: str, target: torch.device | None) -> None:
        """Store a row of a batch."""
        self._store(key, self._entry(value, label, target))

    def release(self) -> int:
        """Free the entries' device memory, before the model sleeps; the bytes freed. Each comes back when asked for."""
        return sum(entry.release() for _, entry in self.store.snapshot())

    def device_bytes(self) -> int:
        """Bytes that the entries hold on an accelerator now."""
        return sum(entry.device_bytes for _, entry in self.store.snapshot())

    def find(self, key: PromptKey, consumer: FrameType | None = None, target: torch.device | None = None) -> Any:
        """The value of ``key`` or ``CACHE_MISS``, uncounted; ``consumer`` goes on record as its holder.

        Raises:
            StateError: the value was changed in place, and ``on_mutation`` is ``raise``.
        """
        entry = self.store.lookup(key, None)
        return CACHE_MISS if entry is None else self._hand_out(key, entry, consumer, target)

    def load_once(
        self,
        key: PromptKey,
        load: Callable[[], tuple[Any, PromptKey | None]],
        *,
        label: str,
        consumer: FrameType,
        target: torch.device | None = None,
    ) -> Any:
        """After a miss: the value of ``load()``, which runs once however many threads ask for ``key``.

        Args:
            load: gives the value and the key to store it under, or None in place of the key when the encoders
                changed while it ran.
            label: names the entry in messages.
            consumer: the frame that asked.

        Raises:
            Exception: what ``load`` raised, also in those who waited for it.
        """
        loaded, led = self._flights.run(key, lambda: self._found(key) or self._keep(*load(), label, target))
        served = self._serve(key, loaded, led, consumer, target)
        return load()[0] if served is CACHE_MISS else served

    async def load_once_async(
        self,
        key: PromptKey,
        load: Callable[[], Awaitable[tuple[Any, PromptKey | None]]],
        *,
        label: str,
        consumer: FrameType,
        target: torch.device | None = None,
    ) -> Any:
        """As :meth:`load_once` for a coroutine function: ``load`` gives a coroutine of the pair."""

        async def lead() -> _Loaded:
            return self._found(key) or self._keep(*await load(), label, target)

        loaded, led = await self._flights.run_async(key, lead)
        served = self._serve(key, loaded, led, consumer, target)
        return (await load())[0] if served is CACHE_MISS else served

    def load_rows(
        self,
        labels: dict[PromptKey, str],
        load: Callable[[list[PromptKey]], dict[PromptKey, tuple[Any, PromptKey | None]]],
        *,
        consumer: FrameType,
        target: torch.device | None = None,
    ) -> dict[PromptKey, Any]:
        """As :meth:`load_once` for the rows of a list: each is encoded once, in whichever list asked for it first.

        Args:
            labels: the rows wanted, each with its name for messages.
            load: gives the pairs of those rows that nobody else is loading.
        """
        led: set[PromptKey] = set()

        def lead(keys: list[PromptKey]) -> dict[PromptKey, _Loaded]:
            led.update(keys)
            loaded = {key: there for key in keys if (there := self._found(key)) is not None}
            absent = [key for key in keys if key not in loaded]
            fresh = load(absent) if absent else {}
            return loaded | {key: self._keep(*pair, labels[key], target) for key, pair in fresh.items()}

        rows = {}
        for key, loaded in self._flights.run_many(list(labels), lead).items():
            served = self._serve(key, loaded, key in led, consumer, target, is_row=True)
            rows[key] = load([key])[key][0] if served is CACHE_MISS else served
        return rows

    def _found(self, key: PromptKey) -> _Loaded | None:
        # Another leader may have finished between this call's lookup and its flight.
        entry = self.store.lookup(key, None)
        return None if entry is None else _Loaded(entry)

    def _keep(self, value: Any, key: PromptKey | None, label: str, target: torch.device | None) -> _Loaded:
        try:
            entry = self._entry(value, label, target)
        except WrongTypeError as error:
            self.counts.bypass("result")
            logger.warning("prompt-embedding cache: result of encode_prompt(%s) not stored: %s", label, error)
            return _Loaded(None, value)
        if key is not None:
            self._store(key, entry)
        else:
            self.counts.add("outdated")
        return _Loaded(entry, value)

    def _serve(
        self,
        key: PromptKey,
        loaded: _Loaded,
        led: bool,
        consumer: FrameType,
        target: torch.device | None,
        *,
        is_row: bool = False,
    ) -> Any:
        if led and loaded.fresh is not CACHE_MISS:
            return loaded.fresh  # the encode's own tensors: the store has copies
        if loaded.entry is None:
            return CACHE_MISS  # a result that cannot be shared: each call makes its own
        self.counts.add("coalesced")
        if not is_row:
            self.counts.add("hits")
        return self._hand_out(key, loaded.entry, consumer, target)

    def _store(self, key: PromptKey, entry: Entry) -> None:
        if not self.store.put(key, entry, entry.num_bytes):
            logger.warning(
                "prompt-embedding cache: %s not stored: %d bytes exceed max_bytes=%s",
                entry.label or "a value",
                entry.num_bytes,
                self.max_bytes,
            )

    def _hand_out(self, key: PromptKey, entry: Entry, consumer: FrameType | None, target: torch.device | None) -> Any:
        what = entry.find_mutation()
        if what is None:
            if consumer is not None:
                entry.consumers.append((consumer.f_code, consumer.f_lineno))
            try:
                return entry.copy(target) if self.options.copy_on_hit else entry.value(target)
            except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
                self.store.discard(key)  # the encode that follows takes its place
                self.counts.add("unplaced")
                logger.warning("prompt embedding %s cannot be moved to %s: %s", entry.label, target, error)
                return CACHE_MISS
        self.store.discard(key)
        self.counts.add("mutated")
        message = (
            f"prompt embedding {entry.label!r} was changed in place after it was stored ({what}); "
            f"it was handed to {entry.describe_consumers()}; "
            f"clone it there, or install the cache with copy_on_hit=True"
        )
        if self.options.on_mutation == "raise":
            raise StateError(message)
        logger.warning("%s; it is dropped and encoded again", message)
        return CACHE_MISS


def _checked_size(max_size: int) -> int:
    if not isinstance(max_size, int) or isinstance(max_size, bool) or max_size < 1:
        raise ConfigError(
            f"PromptEmbedCache(max_size={max_size!r}): field must be an integer of at least 1, got {max_size!r}; "
            f"pass enabled=False to store nothing"
        )
    return max_size


class _Loaded:
    """What a leader delivers: the entry (None if it cannot be stored) and, to itself, the fresh value."""

    __slots__ = ("entry", "fresh")

    def __init__(self, entry: Entry | None, fresh: Any = CACHE_MISS) -> None:
        self.entry, self.fresh = entry, fresh
