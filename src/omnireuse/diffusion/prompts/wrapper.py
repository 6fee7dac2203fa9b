"""The callable that stands in for a pipeline's `encode_prompt`."""

from __future__ import annotations

import copy
import inspect
import logging
import reprlib
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from omnireuse.diffusion.prompts.cache import CACHE_MISS, PromptEmbedCache, PromptKey
from omnireuse.diffusion.prompts.calls import CallReader
from omnireuse.diffusion.prompts.keys import Frozen, UnkeyableError, freeze, is_embeds_name
from omnireuse.diffusion.prompts.options import PromptCacheOptions
from omnireuse.diffusion.prompts.reads import reads_of
from omnireuse.diffusion.prompts.watch import EncoderWatch

__all__ = ["ABSENT", "CachedEncodePrompt", "Setup"]

logger = logging.getLogger("omnireuse")

ABSENT: Any = type("_Absent", (), {"__reduce__": lambda _self: "ABSENT", "__deepcopy__": lambda self, _memo: self})()
"""No ``encode_prompt`` of the instance's own: the class's one is in charge."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The arguments of an installation, enough to make the same one again in a copy of the pipeline."""

    max_size: int = 32
    enabled: bool = True
    max_bytes: int | None = None
    model_tag: str | None = None
    options: PromptCacheOptions = field(default_factory=PromptCacheOptions)


class CachedEncodePrompt:
    """Looks like the pipeline's ``encode_prompt`` and encodes what its cache does not hold.

    Args:
        pipeline: held weakly, so that the wrapper in its attributes makes no reference cycle.
        original: the ``encode_prompt`` that the instance itself had, or ``ABSENT`` for that of its class.
        setup: as given to ``install_prompt_embed_cache``.
    """

    def __init__(self, pipeline: object, original: Any, setup: Setup) -> None:
        self._pipeline = weakref.ref(pipeline)
        self.original, self.setup = original, setup
        self.cache = PromptEmbedCache(setup.max_size, setup.enabled, max_bytes=setup.max_bytes, options=setup.options)
        self._call: _Call | None = None
        self._epoch = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What ``encode_prompt(*args, **kwargs)`` returns, from the cache if it holds it. A hit is read-only."""
        pipeline = self.pipeline
        call = self._call
        if call is None or not call.is_for(pipeline, self.original):
            call = self._read_call(pipeline)
        cache = self.cache
        if not cache.enabled:
            return call.function(*args, **kwargs)
        try:
            bound = call.reader.bind(args, kwargs)
            key = self.key_of(pipeline, call, bound)
        except UnkeyableError as reason:
            cache.count_bypass(reason.reason)
            return call.function(*args, **kwargs)
        except TypeError:
            cache.count_bypass("signature")
            return call.function(*args, **kwargs)  # raises its own error, or knows better
        consumer = sys._getframe(1)
        value = cache.find(key, consumer)
        if value is CACHE_MISS:
            request = _Request(self, pipeline, call, bound, args, kwargs)
            return request.run_async(key, consumer) if call.is_async else request.run(key, consumer)
        cache.count(misses=False)
        for attribute, parameter in call.echoes:
            if bound.get(parameter) is not None and hasattr(pipeline, attribute):
                setattr(pipeline, attribute, bound[parameter])
        return _ready(value) if call.is_async else value

    @property
    def pipeline(self) -> Any:
        """The pipeline this stands in for.

        Raises:
            ReferenceError: it is gone.
        """
        pipeline = self._pipeline()
        if pipeline is None:
            raise ReferenceError("encode_prompt was called after its pipeline was freed")
        return pipeline

    @property
    def watch(self) -> EncoderWatch:
        """The watch over the pipeline's encoders."""
        call = self._call or self._read_call(self.pipeline)
        return call.watch

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return _resolve(self.pipeline, self.original)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    @property
    def __name__(self) -> str:
        return "encode_prompt"

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # the documentation of what it stands in for
        return self.__wrapped__.__doc__ if self._pipeline() is not None else None

    @property
    def __self__(self) -> Any:
        return self.pipeline

    def bump_epoch(self) -> int:
        """Declare everything encoded so far out of date; the new epoch."""
        epoch = self.watch.bump()
        self._enter_epoch(epoch)
        return epoch

    def close(self) -> None:
        """Stop watching; the cache is emptied."""
        if self._call is not None:
            self._call.watch.close()
        self.cache.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedEncodePrompt:
        # A copy serves the copied pipeline, from an empty cache: its encoders are now its own.
        return CachedEncodePrompt(
            copy.deepcopy(self.pipeline, memo), copy.deepcopy(self.original, memo), copy.deepcopy(self.setup, memo)
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedEncodePrompt, (self.pipeline, self.original, self.setup)

    def _read_call(self, pipeline: object) -> _Call:
        if self._call is not None:
            logger.info("encode_prompt of %s was replaced; its cached embeddings are dropped", type(pipeline).__name__)
            self._call.watch.close()
            self.cache.clear()
        self._call = call = _Call(pipeline, self.original, self.setup.options.weights)
        return call

    def key_of(self, pipeline: object, call: _Call, bound: dict[str, Any]) -> PromptKey:
        """The key of a bound call as of now.

        Raises:
            UnkeyableError: there is none.
        """
        state = call.watch.current(pipeline)
        if state[0] != self._epoch:
            self._enter_epoch(state[0])
        rules = self.setup.options.key_rules
        parts: list[Frozen] = [state]
        for name, value in bound.items():
            if value is not None and (call.is_embeds[name] if name in call.is_embeds else is_embeds_name(name)):
                raise UnkeyableError("embeds")
            parts.append(value if type(value) is str and len(value) < 1024 else freeze(value, rules))
        if len(bound) != len(call.is_embeds):
            parts.append(tuple(bound))  # surplus keyword arguments: their names count too
        return PromptKey(parts)

    def _enter_epoch(self, epoch: int) -> None:
        """Drop what no key can reach any more."""
        self._epoch = epoch
        dropped = self.cache.store.discard_if(
            lambda key, _entry: isinstance(key, PromptKey) and key[0] is not None and key[0][0] != epoch
        )
        if dropped:
            logger.info("encoders changed: %d cached prompt embeddings dropped (epoch %d)", dropped, epoch)


class _Call:
    """One ``encode_prompt`` function of one pipeline: how to read its arguments and what it depends on."""

    def __init__(self, pipeline: object, original: Any, weights: str) -> None:
        function = _resolve(pipeline, original)
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
        self.watch = EncoderWatch(reads, weights=weights)

    @property
    def function(self) -> Callable[..., Any]:
        """The bound function; not kept, because a bound method keeps its pipeline alive."""
        if self._own is not None:
            return self._own  # type: ignore[no-any-return]  # whatever the user had put there
        return _resolve(self._ref(), ABSENT)

    def is_for(self, pipeline: object, original: Any) -> bool:
        """Whether the pipeline's ``encode_prompt`` is still the one that was read."""
        if original is not ABSENT:
            return True
        return getattr(type(pipeline), "encode_prompt", None) is self._target


def _resolve(pipeline: Any, original: Any) -> Callable[..., Any]:
    if original is not ABSENT:
        return original  # type: ignore[no-any-return]  # whatever the user had put there
    bound: Any = inspect.getattr_static(type(pipeline), "encode_prompt")
    return bound.__get__(pipeline, type(pipeline)) if hasattr(bound, "__get__") else bound  # type: ignore[no-any-return]  # callable: checked at installation


async def _ready(value: Any) -> Any:
    return value


class _Request:
    """One keyed call that missed, on its way through the encoder."""

    def __init__(
        self,
        wrapper: CachedEncodePrompt,
        pipeline: Any,
        call: _Call,
        bound: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._wrapper, self._pipeline, self._call, self._bound = wrapper, pipeline, call, bound
        self._args, self._kwargs = args, kwargs
        first = next((v for v in bound.values() if isinstance(v, (str, list, tuple)) and v), "")
        self._label = reprlib.repr(first)[:80]

    def run(self, key: PromptKey, consumer: FrameType) -> Any:
        """The value of a call of a plain function."""
        key = self._audited(key)
        return self._wrapper.cache.load_once(key, lambda: self._load(key), label=self._label, consumer=consumer)

    async def run_async(self, key: PromptKey, consumer: FrameType) -> Any:
        """The value of a call of a coroutine function."""
        key = self._audited(key)
        return await self._wrapper.cache.load_once_async(
            key, lambda: self._load_async(key), label=self._label, consumer=consumer
        )

    def _audited(self, key: PromptKey) -> PromptKey:
        """The key after a look at everything; an encode is long beside it."""
        self._call.watch.audit(self._pipeline)
        return self._wrapper.key_of(self._pipeline, self._call, self._bound)

    def _load(self, key: PromptKey) -> tuple[Any, PromptKey | None]:
        return self._settled(self._call.function(*self._args, **self._kwargs), key)

    async def _load_async(self, key: PromptKey) -> tuple[Any, PromptKey | None]:
        return self._settled(await self._call.function(*self._args, **self._kwargs), key)

    def _settled(self, value: Any, key: PromptKey) -> tuple[Any, PromptKey | None]:
        """The value with the key to store it under: None when the encoders changed while it was computed."""
        call = self._call
        after = call.watch.current(self._pipeline)
        if after != key[0] and after[:2] == key[0][:2] and call.num_lessons > 0:
            own = call.watch.forget_own_output(key[0], after)
            logger.info("encode_prompt changes %s itself: left out of the key", sorted(".".join(c) for c in own))
            key = self._wrapper.key_of(self._pipeline, call, self._bound)
            after = key[0]
        call.num_lessons -= 1
        _warn_of_gradients(value, self._label)
        return value, key if after == key[0] else None


def _warn_of_gradients(value: Any, label: str) -> None:
    leaves = value if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        logger.warning(
            "encode_prompt(%s) was called with gradients on: a hit returns detached tensors; "
            "call it under torch.no_grad(), or uninstall the cache to train an encoder",
            label,
        )
