"""One keyed call that missed, on its way through the encoder: whole, or row by row."""

from __future__ import annotations

import asyncio
import logging
import reprlib
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from omnireuse.diffusion.prompts.cache import PromptEmbedCache
from omnireuse.diffusion.prompts.calls import Call
from omnireuse.diffusion.prompts.counts import CACHE_MISS
from omnireuse.diffusion.prompts.keys import PromptKey
from omnireuse.diffusion.prompts.rows import Layout, RowPlan, plan_rows

__all__ = ["Request"]

logger = logging.getLogger("omnireuse")


class Request:
    """One call after its miss.

    Args:
        key_of: makes the key of other bound arguments, for the rows.
        args, kwargs: the call as it came.
        target: the device that it wants its tensors on.
    """

    def __init__(
        self,
        cache: PromptEmbedCache,
        key_of: Callable[[Any, Call, dict[str, Any]], PromptKey],
        pipeline: Any,
        call: Call,
        bound: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: torch.device | None,
    ) -> None:
        self._cache, self._pipeline, self._call, self._bound = cache, pipeline, call, bound
        self._args, self._kwargs, self._target = args, kwargs, target
        self._key_of: Callable[[dict[str, Any]], PromptKey] = lambda arguments: key_of(pipeline, call, arguments)

    def run(self, consumer: FrameType) -> Any:
        """The value of a call of a plain function."""
        key = self._audited_key()
        plan = plan_rows(self._bound) if self._call.goes_by_rows else None
        if plan is not None and len(plan.rows) <= max(2, self._cache.max_size // 2):
            return self._run_rows(key, plan, consumer)
        return self._whole(key, consumer)

    async def run_async(self, consumer: FrameType) -> Any:
        """The value of a call of a coroutine function."""
        key = self._audited_key()

        async def load() -> tuple[Any, PromptKey | None]:
            found = await asyncio.to_thread(self._from_outside, key) if self._call.outside else None
            if found is not None:
                self._cache.counts.add("hits")
                return found
            value, kept = self._settled(await self._call.function(*self._args, **self._kwargs), key)
            if self._call.outside is not None:
                await asyncio.to_thread(self._put_outside, kept, value)
            return value, kept

        return await self._cache.load_once_async(
            key, load, label=_label(self._bound), consumer=consumer, target=self._target
        )

    def _whole(self, key: PromptKey, consumer: FrameType) -> Any:
        return self._cache.load_once(
            key,
            lambda: self._load(key, lambda: self._call.function(*self._args, **self._kwargs)),
            label=_label(self._bound),
            consumer=consumer,
            target=self._target,
        )

    def _run_rows(self, key: PromptKey, plan: RowPlan, consumer: FrameType) -> Any:
        book, size = self._call.rows, len(plan.rows)
        kind = self._kind(key, plan)
        if book.is_refused(kind, size):
            return self._whole(key, consumer)
        layout = book.layout(kind, size)
        if layout is not None:
            return self._join_rows(key, kind, layout, plan, consumer)
        value = self._whole(key, consumer)
        key = self._key_of(self._bound)
        if key not in self._cache.store:
            return value  # out of date already, or too large: nothing to take rows from
        kind = self._kind(key, plan)
        alone = book.prove(kind, value, size, lambda i: self._row(plan.rows[i], consumer), lambda: self._uneven(plan))
        layout = book.layout(kind, size)
        if layout is not None:
            self._keep_rows(key, layout, value, [row for i, row in enumerate(plan.rows) if i not in alone], plan)
            self._cache.store.discard(key)  # its rows are there instead
        return value

    def _uneven(self, plan: RowPlan) -> Any:
        self._cache.counts.add("misses")
        return self._encode(plan.uneven(self._bound))

    def _kind(self, key: PromptKey, plan: RowPlan) -> Any:
        """All of the call but its prompts."""
        others = [part for name, part in zip(self._bound, key[1:], strict=False) if name not in plan.names]
        return key[0], plan.names, tuple(others)

    def _join_rows(self, key: PromptKey, kind: Any, layout: Layout, plan: RowPlan, consumer: FrameType) -> Any:
        keys = [self._key_of(row) for row in plan.rows]
        rows = dict(zip(keys, plan.rows, strict=True))
        found = {k: self._cache.find(k, consumer, self._target) for k in rows}
        labels = {k: _label(rows[k]) for k, value in found.items() if value is CACHE_MISS}
        num_encoded = 0

        def load(absent: list[PromptKey]) -> dict[PromptKey, tuple[Any, PromptKey | None]]:
            nonlocal num_encoded
            loaded = {k: pair for k in absent if (pair := self._from_outside(k)) is not None}
            missing = [k for k in absent if k not in loaded]
            num_encoded += len(missing)
            return loaded | (self._encode_rows(key, kind, plan, keys, missing) if missing else {})

        if labels:
            found |= self._cache.load_rows(labels, load, consumer=consumer, target=self._target)
        self._cache.counts.add("row_hits", len(keys) - num_encoded)
        self._cache.counts.add("row_misses", num_encoded)
        if not num_encoded:
            self._cache.counts.add("hits")
        joined = layout.join([found[k] for k in keys])
        return self._whole(key, consumer) if joined is None else joined

    def _encode_rows(
        self, key: PromptKey, kind: Any, plan: RowPlan, keys: list[PromptKey], missing: list[PromptKey]
    ) -> dict[PromptKey, tuple[Any, PromptKey | None]]:
        """The missing rows: in one batch where its size is proven, else one by one."""
        indices = [keys.index(k) for k in missing]
        layout = self._call.rows.layout(kind, len(missing))
        parts = None
        if layout is not None:
            value, kept = self._settled(self._encode(plan.batch(self._bound, indices)), key)
            parts = layout.split(value, len(missing))
        if parts is None:
            loaded = {k: self._settled(self._encode(plan.rows[i]), k) for k, i in zip(missing, indices, strict=True)}
        else:
            loaded = {
                k: (part, None if kept is None else PromptKey((kept[0], *k[1:])))
                for k, part in zip(missing, parts, strict=True)
            }
        for value, kept in loaded.values():
            self._put_outside(kept, value)
        return loaded

    def _row(self, row: dict[str, Any], consumer: FrameType) -> Any:
        key = self._key_of(row)
        value = self._cache.find(key, consumer, self._target)
        if value is not CACHE_MISS:
            return value

        def load() -> tuple[Any, PromptKey | None]:
            return self._load(key, lambda: self._encode(row))

        return self._cache.load_once(key, load, label=_label(row), consumer=consumer, target=self._target)

    def _load(self, key: PromptKey, encode: Callable[[], Any]) -> tuple[Any, PromptKey | None]:
        """From the outer store if it has it, else encoded and put there."""
        found = self._from_outside(key)
        if found is not None:
            self._cache.counts.add("hits")
            return found
        value, kept = self._settled(encode(), key)
        self._put_outside(kept, value)
        return value, kept

    def _from_outside(self, key: PromptKey) -> tuple[Any, PromptKey] | None:
        outside = self._call.outside
        found = CACHE_MISS
        if outside is not None:
            found = outside.lookup(self._call.watch, self._pipeline, key, self._target)
        if found is CACHE_MISS:
            return None
        self._cache.counts.add("outside_hits")
        return found, key

    def _put_outside(self, key: PromptKey | None, value: Any) -> None:
        if self._call.outside is not None and key is not None:
            self._call.outside.put(self._call.watch, self._pipeline, key, value, self._target)

    def _keep(self, key: PromptKey, value: Any, bound: dict[str, Any]) -> None:
        self._cache.keep(key, value, _label(bound), self._target)
        self._put_outside(key, value)

    def _keep_rows(self, key: PromptKey, layout: Layout, value: Any, rows: list[dict[str, Any]], plan: RowPlan) -> None:
        parts = layout.split(value, len(plan.rows))
        if parts is None or self._call.watch.current(self._pipeline) != key[0]:
            return
        for row, part in zip(plan.rows, parts, strict=True):
            if any(row is wanted for wanted in rows):
                self._keep(self._key_of(row), part, row)

    def _encode(self, bound: dict[str, Any]) -> Any:
        args, kwargs = self._call.reader.rebuild(bound)
        return self._call.function(*args, **kwargs)

    def _audited_key(self) -> PromptKey:
        """The key after a look at everything; an encode is long beside it."""
        self._call.watch.audit(self._pipeline)
        return self._key_of(self._bound)

    def _settled(self, value: Any, key: PromptKey) -> tuple[Any, PromptKey | None]:
        """The value with the key to store it under: None when the encoders changed while it was computed."""
        call = self._call
        self._cache.counts.add("misses")
        after = call.watch.current(self._pipeline)
        if after != key[0] and after[:2] == key[0][:2] and call.num_lessons > 0:
            own = call.watch.forget_own_output(key[0], after)
            logger.info("encode_prompt changes %s itself: left out of the key", sorted(".".join(c) for c in own))
            after = call.watch.current(self._pipeline)
            key = PromptKey((after, *key[1:]))
        call.num_lessons -= 1
        _warn_of_gradients(value, _label(self._bound))
        return value, key if after == key[0] else None


def _label(bound: dict[str, Any]) -> str:
    """The start of the first prompt-like argument, to name an entry in messages."""
    first = next((v for v in bound.values() if isinstance(v, (str, list, tuple)) and v), "")
    return reprlib.repr(first)[:80]


def _warn_of_gradients(value: Any, label: str) -> None:
    leaves = value if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        logger.warning(
            "encode_prompt(%s) was called with gradients on: a hit returns detached tensors; "
            "call it under torch.no_grad(), or uninstall the cache to train an encoder",
            label,
        )
