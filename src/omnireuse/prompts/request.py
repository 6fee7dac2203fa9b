"""One call that missed: what other processes keep, or else a recorded encode."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from omnireuse.errors import WrongTypeError
from omnireuse.prompts.call import EncodeCall
from omnireuse.prompts.entry import CACHE_MISS, Entry
from omnireuse.prompts.keys import PromptKey, UnkeyableError, is_plain
from omnireuse.prompts.reading import Reading, Sight, look_up
from omnireuse.prompts.recording import Recording

__all__ = ["Request", "leave"]

logger = logging.getLogger("omnireuse")


class Request:
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
        self._label = reprlib.repr(next((a for a in (*args, *kwargs.values()) if a and _is_text(a)), ""))[:80]
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
            if isinstance(entry, Entry) and (led or entry.key in self._keys()):
                value = self._cache.hand_out(entry)
                if value is not CACHE_MISS:
                    self._cache.add("hits")
                    self._cache.add("coalesced", not led)
                    leave(self._call.pipeline, entry)
                    return value

    def _load(self) -> Any:
        """An entry from this process, from elsewhere, or of an encode; see `_encode`."""
        found = [entry for key in self._keys() if (entry := self._cache.store.lookup(key, None)) is not None]
        return found[0] if found else self._from_outside() or self._encode()

    def _keys(self) -> list[PromptKey]:
        """Keys of this call by whatever calls were seen to read: it may be spelled in another way."""
        return self._call.keys(self._arguments)

    def _from_outside(self) -> Entry | None:
        """What another process kept, if the same is read here: the same names, with the same content."""
        call, outside = self._call, self._call.outside
        record = None if outside is None else outside.lookup(call.pipeline, self._arguments)
        if record is None:
            return None
        sight = call.look(Reading((*record.names,), frozenset(record.whole)))
        if sight.elsewhere != record.content:
            return None
        call.remember(self._arguments, sight)
        key = call.key(self._arguments, sight)
        self._cache.add("outside_hits")
        return self._cache.keep(key, record.value_on(key.target), self._label, record.left)

    def _encode(self) -> Any:
        """An entry with the result; None if it cannot be shared; `CACHE_MISS` if it is out of date already."""
        call, cache, pipeline = self._call, self._cache, self._call.pipeline
        before_call = _generators()
        idle = call.idle()
        with Recording(Sight(pipeline, call.surveys(), lambda path: path not in idle)) as recording:
            self._own = value = call.function(*self._args, **self._kwargs)
        try:
            before = recording.sight.finish()
            call.remember(self._arguments, before)
            after = call.look(before.reading)
            left = _left(recording)
            if _have_drawn(before_call):
                raise UnkeyableError("training" if after.any_layer("training") else "random", self._label)
        except UnkeyableError as error:
            cache.bypass(error.reason, error.where)
            return None
        cache.add("misses")
        self._warn_of_gradients(value)
        if after.state != before.state or recording.spoiled or not call.is_open:
            cache.add("outdated")
            changed = sorted({*before.unlike(after), *recording.spoiled})
            logger.info("encode_prompt(%s) is not stored: what it read changed meanwhile: %s", self._label, changed)
            return CACHE_MISS
        try:
            key = call.key(self._arguments, after)
            entry = cache.keep(key, value, self._label, left)
            if call.outside is not None and after.elsewhere is not None:
                call.outside.put(pipeline, self._arguments, after, value, left, key.target)
        except WrongTypeError as error:
            cache.bypass("result", str(error))
            return None
        return entry

    def _warn_of_gradients(self, value: Any) -> None:
        leaves = value if isinstance(value, (tuple, list)) else (value,)
        if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            logger.warning(
                "encode_prompt(%s) was called with gradients on: a hit returns detached tensors; "
                "call it under torch.no_grad(), or uninstall the cache to train an encoder",
                self._label,
            )


def leave(pipeline: object, entry: Entry) -> None:
    """Set what the encoding itself set on the pipeline."""
    for name, value in entry.left:
        if look_up(pipeline, name) is not value:
            setattr(pipeline, name, value)


def _left(recording: Recording) -> tuple[tuple[str, Any], ...]:
    """Attributes that the call set."""
    kept = {name: value for name, value in recording.left.items() if look_up(recording.pipeline, name) is value}
    for name, value in recording.left.items():
        if name not in kept or not is_plain(value):
            raise UnkeyableError("left", name)
    return tuple(kept.items())


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, list, tuple))


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
