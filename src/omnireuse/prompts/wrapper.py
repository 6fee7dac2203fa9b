"""The callable that stands in for a pipeline's `encode_prompt`."""

from __future__ import annotations

import copy
import logging
import weakref
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from omnireuse.fingerprints.plain import UnkeyableError
from omnireuse.fingerprints.watch import suspect_stepped
from omnireuse.prompts.cache import PromptCacheOptions, PromptEmbedCache
from omnireuse.prompts.call import EncodeCall
from omnireuse.prompts.encoding import is_encoding
from omnireuse.prompts.entry import CACHE_MISS
from omnireuse.prompts.request import MissedCall

__all__ = ["CachedEncodePrompt"]

logger = logging.getLogger("omnireuse")


class CachedEncodePrompt:
    """Looks like the pipeline's ``encode_prompt`` and encodes what its cache does not hold."""

    def __init__(
        self,
        pipeline: object,
        original: Any,
        max_size: int,
        enabled: bool,
        model_tag: str | None,
        options: PromptCacheOptions,
    ) -> None:
        self._pipeline = weakref.ref(pipeline)
        self.original, self.model_tag = original, model_tag
        self.cache = PromptEmbedCache(max_size, enabled, options=options)
        self._call = EncodeCall(pipeline, original, self.cache, model_tag)
        function = self._call.function
        self.__wrapped__ = getattr(function, "__func__", function)  # a bound method would keep the pipeline alive
        self.__name__, self.__doc__ = "encode_prompt", function.__doc__
        self.__signature__ = self._call.arguments.signature
        weakref.finalize(self, register_optimizer_step_post_hook(suspect_stepped).remove)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of ``encode_prompt(*args, **kwargs)``, from the cache if held. A hit is read-only."""
        pipeline, call, cache = self.pipeline, self.call, self.cache
        if not cache.enabled:
            return call.function(*args, **kwargs)
        if is_encoding():  # within another encoding, whose entry must know what is used here
            cache.bypass("nested")
            return call.aside(args, kwargs)
        try:
            arguments = call.arguments.key(pipeline, args, kwargs)
            key = call.key_now(arguments)
        except UnkeyableError as error:
            cache.bypass(error.reason, error.where)
            return call.aside(args, kwargs)
        except (TypeError, RuntimeError):
            cache.bypass("signature")
            return call.aside(args, kwargs)  # raises its own error, or knows better
        entry = None if key is None else cache.store.lookup(key, None)
        value = CACHE_MISS if entry is None else cache.hand_out(entry)
        if entry is not None and value is not CACHE_MISS:
            cache.add("hits")
            call.hit(arguments, entry)
            return value
        return MissedCall(call, arguments, args, kwargs, self).run()

    @property
    def pipeline(self) -> Any:
        """The pipeline this stands in for."""
        pipeline = self._pipeline()
        if pipeline is None:
            raise ReferenceError("encode_prompt was called after its pipeline was freed")
        return pipeline

    @property
    def call(self) -> EncodeCall:
        """The signature of the pipeline's ``encode_prompt``, and what was seen in this epoch."""
        pipeline = self.pipeline
        if not self._call.is_current(pipeline):
            logger.info("encode_prompt of %s was replaced; its embeddings are dropped", type(pipeline).__name__)
            self.bump()
        return self._call

    def bump(self) -> int:
        """Start a new epoch and return it: all that is kept is out of date, and so is what is encoded just now."""
        gone, self._call = self._call, EncodeCall(self.pipeline, self.original, self.cache, self.model_tag)
        gone.close()
        self.cache.drop_calls()
        return self._call.epoch

    @property
    def arguments(self) -> dict[str, Any]:
        """As given to ``install_prompt_embed_cache``, with what was assigned to the cache since."""
        cache = self.cache
        names = {"max_size": cache.max_size, "enabled": cache.enabled, "model_tag": self.model_tag}
        return names | {"options": cache.options}

    @property
    def __self__(self) -> Any:
        return self.pipeline

    def close(self) -> None:
        """Let go of all that was seen; the cache is emptied."""
        self.bump()
        self.cache.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedEncodePrompt:
        # A copy serves the copied pipeline, from an empty cache: its encoders are now its own.
        return CachedEncodePrompt(*copy.deepcopy((self.pipeline, self.original, *self.arguments.values()), memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedEncodePrompt, (self.pipeline, self.original, *self.arguments.values())
