"""Calls of one pipeline's `encode_prompt`: arguments by name, keys, and the device of its tensors."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch

from omnireuse.prompts.cache import PromptEmbedCache
from omnireuse.prompts.keys import Frozen, PromptKey, UnkeyableError, freeze, is_embeds_name
from omnireuse.prompts.outside import Outside
from omnireuse.prompts.reads import reads_of
from omnireuse.prompts.rows import Layout
from omnireuse.prompts.watch import EncoderWatch

__all__ = ["EncodeCall", "own_function"]

logger = logging.getLogger("omnireuse")

_DEVICES = (str, int, torch.device)


class EncodeCall:
    """One ``encode_prompt`` function of one pipeline.

    Args:
        pipeline: held weakly.
        original: the function that the instance itself had; None for that of its class.
        cache: where the results go.
        tag: names the model in the store outside the process.
    """

    def __init__(self, pipeline: object, original: Any, cache: PromptEmbedCache, tag: str | None) -> None:
        function = own_function(pipeline) if original is None else original
        self._pipeline, self._original = weakref.ref(pipeline), original
        self._code = getattr(function, "__func__", function)
        self.cache = cache
        self.signature = inspect.signature(function)
        self.bind = _binder(self.signature)
        parameters = self.signature.parameters
        self._embeds = frozenset(filter(is_embeds_name, parameters))
        self._surplus = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
        reads = reads_of(pipeline, function)
        if reads is None:
            name = type(pipeline).__name__
            logger.info("the code of encode_prompt of %s does not tell what it reads: all parts are watched", name)
        self.echoes = [] if reads is None else sorted(echo for echo in reads.echoes if echo[1] in parameters)
        # The division of lists into rows, by kind of call; None: undivided.
        self.layouts: dict[Any, Layout | None] = {}
        layouts, held = self.layouts, weakref.ref(cache)

        def forget() -> None:
            layouts.clear()
            known = held()
            if known is not None:
                known.drop_calls()

        self.watch = EncoderWatch(reads, forget)
        store = cache.options.outside
        cache.outside = None if store is None else Outside(store, tag, self.watch, self._pipeline)

    @property
    def pipeline(self) -> Any:
        """The pipeline; alive, because it is what is called."""
        return self._pipeline()

    @property
    def function(self) -> Callable[..., Any]:
        """The bound function; not kept, because a bound method keeps its pipeline alive."""
        return own_function(self.pipeline) if self._original is None else self._original

    def is_current(self, pipeline: object) -> bool:
        """Whether the pipeline's ``encode_prompt`` is still the one that was read."""
        return self._original is not None or getattr(type(pipeline), "encode_prompt", None) is self._code

    def key(self, bound: dict[str, Any], state: tuple[Frozen, ...], target: torch.device | None) -> PromptKey:
        """The key of a call."""
        parts: list[Any] = [state, target]
        for name, value in bound.items():
            if value is None or (name == "device" and type(value) in _DEVICES):
                parts.append(None)
            elif name in self._embeds or (name == self._surplus and _has_embeds(value)):
                raise UnkeyableError("embeds")
            else:
                parts.append(freeze(value))
        return PromptKey(parts)

    def target(self, pipeline: Any, bound: dict[str, Any]) -> torch.device | None:
        """Where this call wants its tensors: its ``device``, else where the pipeline runs or its first encoder is."""
        device = bound.get("device")
        if device is None and "device" in bound:
            device = getattr(pipeline, "_execution_device", None)
        if device is None:
            return self.watch.device()
        return device if type(device) is torch.device else torch.device(device)


def own_function(pipeline: Any) -> Callable[..., Any]:
    """The ``encode_prompt`` of the pipeline's class, bound to it."""
    found: Any = inspect.getattr_static(type(pipeline), "encode_prompt")
    return found.__get__(pipeline, type(pipeline)) if hasattr(found, "__get__") else found  # type: ignore[no-any-return]  # callable: checked at installation


def _has_embeds(surplus: dict[str, Any]) -> bool:
    return any(value is not None and is_embeds_name(name) for name, value in surplus.items())


def _binder(signature: inspect.Signature) -> Callable[..., dict[str, Any]]:
    """A function of this signature that returns its arguments by name: much faster than ``Signature.bind``."""
    parameters = signature.parameters.values()
    plain = [p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None) for p in parameters]
    space: dict[str, Any] = {}
    exec(f"def bind{inspect.Signature(plain)}: return locals()", space)
    bind = space["bind"]
    given = [p for p in parameters if p.default is not p.empty]
    bind.__defaults__ = tuple(p.default for p in given if p.kind is not p.KEYWORD_ONLY)
    bind.__kwdefaults__ = {p.name: p.default for p in given if p.kind is p.KEYWORD_ONLY}
    return bind  # type: ignore[no-any-return]  # the function just made
