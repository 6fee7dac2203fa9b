"""One call that missed: what other processes keep, or else an encode."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from omnireuse.errors import WrongTypeError
from omnireuse.fingerprints.plain import UnkeyableError
from omnireuse.prompts.call import EncodeCall
from omnireuse.prompts.encoding import Encoding
from omnireuse.prompts.entry import CACHE_MISS, Entry
from omnireuse.prompts.keys import PromptKey
from omnireuse.prompts.view import Scope
from omnireuse.stores.trees import flatten

__all__ = ["MissedCall"]

logger = logging.getLogger("omnireuse")

_TEXTS = (str, list, tuple)


class MissedCall:
    """One call after its miss.

    Args:
        again: the cached ``encode_prompt``, for a call whose epoch ends while it waits.
    """

    def __init__(
        self,
        call: EncodeCall,
        arguments: PromptKey,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        again: Callable[..., Any],
    ) -> None:
        self._call, self._cache, self._arguments = call, call.cache, arguments
        self._args, self._kwargs, self._again = args, kwargs, again
        self._label = reprlib.repr(next((a for a in (*args, *kwargs.values()) if isinstance(a, _TEXTS) and a), ""))[:80]
        self._own: Any = CACHE_MISS

    def run(self) -> Any:
        """The value of the call. It is loaded once, however many threads ask for it in the same state."""
        while True:
            entry, led = self._cache.flights.run((self._call.epoch, self._arguments), self._load)
            if entry is None and not led:  # the loader's result is for itself alone
                self._encode()
            if self._own is not CACHE_MISS:  # whoever encodes gets its own tensors: the cache has copies
                return self._own
            if not self._call.is_open:
                return self._again(*self._args, **self._kwargs)
            # Of other weights or settings than now, or changed by a consumer: then somebody loads again.
            if isinstance(entry, Entry) and (led or entry.key == self._key()):
                value = self._cache.hand_out(entry)
                if value is not CACHE_MISS:
                    self._cache.add("hits")
                    self._cache.add("coalesced", not led)
                    self._call.hit(self._arguments, entry)
                    return value

    def _load(self) -> Any:
        """An entry from this process, from elsewhere, or of an encode; see `_encode`."""
        key = self._key()
        found = None if key is None else self._cache.store.lookup(key, None)
        return found or self._from_outside() or self._encode()

    def _key(self) -> PromptKey | None:
        """The key of this call now; None if there is none."""
        try:
            return self._call.key_now(self._arguments)
        except UnkeyableError:
            return None

    def _from_outside(self) -> Entry | None:
        """What another process kept, if the same counts here, with the same content."""
        call, outside = self._call, self._call.outside
        record = None if outside is None else outside.lookup(call.pipeline, self._arguments)
        if record is None:
            return None
        scope = Scope(frozenset(record.ran), tuple(record.own))
        view = call.views.view(scope)
        state = call.state(scope, view)
        if state.elsewhere != record.content:
            return None
        call.remember(self._arguments, scope)
        key = call.key(self._arguments, view, state)
        self._cache.add("outside_hits")
        left = [(path, held) for path, held in record.left]
        return self._cache.keep(key, record.value_on(key.target), self._label, left)

    def _encode(self) -> Any:
        """An entry with the result; None if it cannot be shared; `CACHE_MISS` if it is out of date already."""
        call, cache = self._call, self._cache
        encoding = None
        try:
            encoding, drawn = Encoding(call), _generators()
            with encoding:
                self._own = value = call.function(*self._args, **self._kwargs)
            scope, after, left = encoding.found()
            if _have_drawn(drawn):
                raise UnkeyableError("training" if after.is_training() else "random", self._label)
            if _requires_grad(value):
                raise UnkeyableError("gradient", f"{self._label}: a hit would have none; its encoder is in training")
        except UnkeyableError as error:
            cache.bypass(error.reason, error.where)
            if encoding is None:
                self._own = call.function(*self._args, **self._kwargs)
            return None
        cache.add("misses")
        call.misses.add(encoding.before, after, encoding.others, is_known=call.scope(self._arguments) is not None)
        call.remember(self._arguments, scope)
        if encoding.others or not call.is_open:
            cache.add("outdated")
            logger.info("encode_prompt(%s) is not stored: changed meanwhile: %s", self._label, encoding.others)
            return CACHE_MISS
        state = call.state(scope, after)
        key = call.key(self._arguments, after, state)
        try:
            entry = cache.keep(key, value, self._label, left)
            if call.outside is not None and state.elsewhere is not None:
                call.outside.put(call.pipeline, self._arguments, scope, state.elsewhere, entry)
        except WrongTypeError as error:
            cache.bypass("result", str(error))
            return None
        return entry


def _requires_grad(value: Any) -> bool:
    try:
        leaves = flatten(value, opaque=True)[1]
    except WrongTypeError:  # it can be read once, and is not stored
        return False
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _generators() -> dict[torch.Generator, bytes]:
    """torch's default random generators, and the state of each; those of CUDA once it is initialized."""
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    with _disable_current_modes():  # a mode of fake tensors would make one of the state, too
        return {generator: generator.get_state().numpy().tobytes() for generator in (torch.default_generator, *cuda)}


def _have_drawn(before: dict[torch.Generator, bytes]) -> bool:
    """Whether a default generator changed. One that the call itself made, by initializing CUDA, starts at its seed."""
    return any(state != (before.get(generator) or _at_seed(generator)) for generator, state in _generators().items())


def _at_seed(generator: torch.Generator) -> bytes:
    with _disable_current_modes():
        fresh = torch.Generator(generator.device).manual_seed(generator.initial_seed())
        return fresh.get_state().numpy().tobytes()
