"""One keyed call that missed, on its way through the encoder: whole, or row by row."""

from __future__ import annotations

import asyncio
import inspect
import logging
import reprlib
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from omnireuse.diffusion.prompts.cache import CACHE_MISS, PromptEmbedCache, PromptKey
from omnireuse.diffusion.prompts.calls import CallReader
from omnireuse.diffusion.prompts.keys import is_embeds_name
from omnireuse.diffusion.prompts.options import PromptCacheOptions
from omnireuse.diffusion.prompts.outside import Outside
from omnireuse.diffusion.prompts.reads import reads_of
from omnireuse.diffusion.prompts.rows import Layout, RowBook, RowPlan, plan_rows
from omnireuse.diffusion.prompts.watch import EncoderWatch

__all__ = ["ABSENT", "Call", "Request", "resolve"]

logger = logging.getLogger("omnireuse")

ABSENT: Any = type("_Absent", (), {"__reduce__": lambda _self: "ABSENT", "__deepcopy__": lambda self, _memo: self})()
"""No ``encode_prompt`` of the instance's own: the class's one is in charge."""


class Call:
    """One ``encode_prompt`` function of one pipeline: how to read its arguments and what it depends on."""

    def __init__(self, pipeline: object, original: Any, options: PromptCacheOptions, tag: str | None) -> None:
        function = resolve(pipeline, original)
        self._target = getattr(function, "__func__", function)
        self._ref = weakref.ref(pipeline)
        self._own = None if original is ABSENT else original
        self.reader = CallReader(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.is_embeds = {name: is_embeds_name(name) for name in self.reader.signature.parameters}
        reads = reads_of(pipeline, function)
        if not reads.complete:
            logger.info(
                "encode_prompt of %s cannot be read in full: all its parts are watched", type(pipeline).__name__
            )
        parameters = self.reader.signature.parameters
        self.echoes = sorted(echo for echo in reads.echoes if echo[1] in parameters)
        self.num_lessons = 2  # encodes that may show which settings encode_prompt changes itself
        self.rows = RowBook()
        self.goes_by_rows = options.rows == "proven" and not self.is_async
        self.outside = None if options.outside is None else Outside(options.outside, tag)
        self.watch = EncoderWatch(reads, weights=options.weights)

    @property
    def function(self) -> Callable[..., Any]:
        """The bound function; not kept, because a bound method keeps its pipeline alive."""
        if self._own is not None:
            return self._own  # type: ignore[no-any-return]  # whatever the user had put there
        return resolve(self._ref(), ABSENT)

    def target(self, pipeline: Any, bound: dict[str, Any]) -> torch.device | None:
        """Where this call wants its tensors: its ``device``, else where the pipeline runs or its first encoder is.

        Raises:
            RuntimeError: ``device`` names none.
        """
        device = bound.get("device")
        if type(device) is torch.device:
            return device
        if device is None:
            device = getattr(pipeline, "_execution_device", None) if "device" in self.is_embeds else None
        return self.watch.device() if device is None else torch.device(device)

    def is_for(self, pipeline: object, original: Any) -> bool:
        """Whether the pipeline's ``encode_prompt`` is still the one that was read."""
        if original is not ABSENT:
            return True
        return getattr(type(pipeline), "encode_prompt", None) is self._target


def resolve(pipeline: Any, original: Any) -> Callable[..., Any]:
    """The function to call: the instance's own, or its class's bound to it."""
    if original is not ABSENT:
        return original  # type: ignore[no-any-return]  # whatever the user had put there
    bound: Any = inspect.getattr_static(type(pipeline), "encode_prompt")
    return bound.__get__(pipeline, type(pipeline)) if hasattr(bound, "__get__") else bound  # type: ignore[no-any-return]  # callable: checked at installation


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
            outside, watch = self._call.outside, self._call.watch
            if outside is not None:
                found = await asyncio.to_thread(outside.lookup, watch, self._pipeline, key, self._target)
                if found is not CACHE_MISS:
                    self._cache.count_outside_hit()
                    return found, key
            value, kept = self._settled(await self._call.function(*self._args, **self._kwargs), key)
            if outside is not None and kept is not None:
                await asyncio.to_thread(outside.put, watch, self._pipeline, kept, value, self._target)
            return value, kept

        return await self._cache.load_once_async(
            key, load, label=_label(self._bound), consumer=consumer, target=self._target
        )

    def _whole(self, key: PromptKey, consumer: FrameType) -> Any:
        return self._cache.load_once(
            key,
            lambda: self._load(key, self._bound, lambda: self._call.function(*self._args, **self._kwargs)),
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
        alone = book.prove(kind, value, size, lambda i: self._row(plan.rows[i], consumer))
        layout = book.layout(kind, size)
        if layout is not None:
            self._keep_rows(key, layout, value, [row for i, row in enumerate(plan.rows) if i not in alone], plan)
            self._cache.store.discard(key)  # its rows are there instead
        return value

    def _kind(self, key: PromptKey, plan: RowPlan) -> Any:
        """All of the call but its prompts."""
        others = [part for name, part in zip(self._bound, key[1:], strict=False) if name not in plan.names]
        return key[0], plan.names, tuple(others)

    def _join_rows(self, key: PromptKey, kind: Any, layout: Layout, plan: RowPlan, consumer: FrameType) -> Any:
        keys = [self._key_of(row) for row in plan.rows]
        found = {k: self._cache.find(k, consumer, self._target) for k in dict.fromkeys(keys)}
        missing = [keys.index(k) for k, value in found.items() if value is CACHE_MISS]
        self._cache.count_rows(found=len(keys) - len(missing), missing=len(missing))
        if len(missing) == len(keys):
            value = self._whole(key, consumer)
            self._keep_rows(key, layout, value, list(plan.rows), plan)
            self._cache.store.discard(key)
            return value
        batch_layout = self._call.rows.layout(kind, len(missing))
        if batch_layout is not None:
            batch = plan.batch(self._bound, missing)
            value, kept_key = self._settled(self._encode(batch), key)
            parts = batch_layout.split(value, len(missing))
            if parts is not None:
                for i, part in zip(missing, parts, strict=True):
                    found[keys[i]] = part
                    if kept_key is not None:
                        self._keep(keys[i], part, plan.rows[i])
        for i in missing:
            if found[keys[i]] is CACHE_MISS:
                found[keys[i]] = self._row(plan.rows[i], consumer)
        if not missing:
            self._cache.count(misses=False)
        joined = layout.join([found[k] for k in keys])
        return self._whole(key, consumer) if joined is None else joined

    def _row(self, row: dict[str, Any], consumer: FrameType) -> Any:
        key = self._key_of(row)
        value = self._cache.find(key, consumer, self._target)
        if value is not CACHE_MISS:
            return value

        def load() -> tuple[Any, PromptKey | None]:
            return self._load(key, row, lambda: self._encode(row))

        return self._cache.load_once(key, load, label=_label(row), consumer=consumer, target=self._target)

    def _load(self, key: PromptKey, bound: dict[str, Any], encode: Callable[[], Any]) -> tuple[Any, PromptKey | None]:
        """From the outer store if it has it, else encoded and put there."""
        outside, call = self._call.outside, self._call
        if outside is None:
            return self._settled(encode(), key)
        found = outside.lookup(call.watch, self._pipeline, key, self._target)
        if found is not CACHE_MISS:
            self._cache.count_outside_hit()
            return found, key
        value, kept = self._settled(encode(), key)
        if kept is not None:
            outside.put(call.watch, self._pipeline, kept, value, self._target)
        return value, kept

    def _keep(self, key: PromptKey, value: Any, bound: dict[str, Any]) -> None:
        self._cache.keep(key, value, _label(bound), self._target)
        if self._call.outside is not None:
            self._call.outside.put(self._call.watch, self._pipeline, key, value, self._target)

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
        self._cache.count(misses=True)
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
