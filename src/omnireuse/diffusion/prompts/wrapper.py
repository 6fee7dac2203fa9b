"""The callable that stands in for a pipeline's `encode_prompt`."""

from __future__ import annotations

import copy
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from omnireuse.diffusion.prompts.cache import PromptEmbedCache
from omnireuse.diffusion.prompts.calls import ABSENT, Call, resolve
from omnireuse.diffusion.prompts.counts import CACHE_MISS
from omnireuse.diffusion.prompts.keys import Frozen, PromptKey, UnkeyableError, freeze, is_embeds_name
from omnireuse.diffusion.prompts.options import PromptCacheOptions
from omnireuse.diffusion.prompts.request import Request
from omnireuse.diffusion.prompts.watch import EncoderWatch

__all__ = ["ABSENT", "CachedEncodePrompt", "Setup"]

logger = logging.getLogger("omnireuse")

_DEVICES = (type(None), str, int, torch.device)


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
        self.original, self._setup = original, setup
        self.cache = PromptEmbedCache(setup.max_size, setup.enabled, max_bytes=setup.max_bytes, options=setup.options)
        self._call: Call | None = None
        self._reading = threading.Lock()
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
            target = call.target(pipeline, bound)
        except UnkeyableError as reason:
            cache.counts.bypass(reason.reason)
            return call.function(*args, **kwargs)
        except (TypeError, RuntimeError):
            cache.counts.bypass("signature")
            return call.function(*args, **kwargs)  # raises its own error, or knows better
        consumer = sys._getframe(1)
        value = cache.find(key, consumer, target)
        if value is CACHE_MISS:
            request = Request(self.cache, self.key_of, pipeline, call, bound, args, kwargs, target)
            return request.run_async(consumer) if call.is_async else request.run(consumer)
        cache.counts.add("hits")
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
    def setup(self) -> Setup:
        """As given to ``install_prompt_embed_cache``, with what was assigned to the cache since."""
        return replace(self._setup, max_size=self.cache.max_size, enabled=self.cache.enabled)

    @property
    def watch(self) -> EncoderWatch:
        """The watch over the pipeline's encoders."""
        return self.call.watch

    @property
    def call(self) -> Call:
        """How the pipeline's ``encode_prompt`` is read."""
        return self._call or self._read_call(self.pipeline)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return resolve(self.pipeline, self.original)

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

    def _read_call(self, pipeline: object) -> Call:
        with self._reading:
            call = self._call
            if call is not None:
                if call.is_for(pipeline, self.original):
                    return call  # another thread was first
                name = type(pipeline).__name__
                logger.info("encode_prompt of %s was replaced; its cached embeddings are dropped", name)
                call.watch.close()
                self.cache.clear()
            self._call = call = Call(pipeline, self.original, self._setup.options, self._setup.model_tag)
            return call

    def key_of(self, pipeline: object, call: Call, bound: dict[str, Any]) -> PromptKey:
        """The key of a bound call as of now.

        Raises:
            UnkeyableError: there is none.
        """
        state = call.watch.current(pipeline)
        if state[0] != self._epoch:
            self._enter_epoch(state[0])
        rules = self._setup.options.key_rules
        parts: list[Frozen] = [state]
        for name, value in bound.items():
            if name == "device" and type(value) in _DEVICES:
                parts.append(None)  # the same numbers wherever they are wanted: see Entry.value
                continue
            if value is not None and (call.is_embeds[name] if name in call.is_embeds else is_embeds_name(name)):
                raise UnkeyableError("embeds")
            parts.append(value if type(value) is str and len(value) < 1024 else freeze(value, rules))
        if len(bound) != len(call.is_embeds):
            parts.append(tuple(bound))  # surplus keyword arguments: their names count too
        return PromptKey(parts)

    def _enter_epoch(self, epoch: int) -> None:
        """Drop what no key can reach any more."""
        self._epoch = epoch
        if self._call is not None:
            self._call.rows.forget()
        dropped = self.cache.store.discard_if(
            lambda key, _entry: isinstance(key, PromptKey) and key[0] is not None and key[0][0] != epoch
        )
        if dropped:
            logger.info("encoders changed: %d cached prompt embeddings dropped (epoch %d)", dropped, epoch)


async def _ready(value: Any) -> Any:
    return value
