"""Calls of one pipeline's `encode_prompt`: arguments by name, keys, and what such calls were seen to read."""

from __future__ import annotations

import inspect
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from omnireuse.pipelines.snapshot import autocast_state
from omnireuse.prompts.cache import PromptEmbedCache
from omnireuse.prompts.entry import Outside
from omnireuse.prompts.keys import PromptKey, UnkeyableError, freeze, is_embeds_name
from omnireuse.prompts.reading import Reading, Sight
from omnireuse.prompts.survey import Survey

__all__ = ["EncodeCall", "own_function"]

_DEVICES = (str, int, torch.device)
_EPOCHS = itertools.count()  # of all pipelines, so that no epoch comes again


class EncodeCall:
    """One ``encode_prompt`` function of one pipeline in one epoch: nothing seen in another one counts.

    Args:
        pipeline: held weakly.
        original: the function that the instance itself had; None for that of its class.
        cache: where the results go.
        tag: names the model in the store outside the process.
    """

    def __init__(self, pipeline: object, original: Any, cache: PromptEmbedCache, tag: str | None) -> None:
        self._lock = threading.RLock()
        self._sights: dict[Reading, Sight] = {}  # never changed, but exchanged: read without the lock
        self._by_call: dict[PromptKey, Reading] = {}
        this = weakref.ref(self)
        self._pipeline, self._original = weakref.ref(pipeline, lambda _: _close(this())), original
        function = self.function
        self._code = getattr(function, "__func__", function)
        self.cache = cache
        self.signature = inspect.signature(function)
        self.bind = _binder(self.signature)
        parameters = self.signature.parameters
        self._embeds = frozenset(filter(is_embeds_name, parameters))
        self._surplus = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
        store = cache.options.outside
        self.outside = None if store is None else Outside(store, tag)
        self.epoch, self.is_open = next(_EPOCHS), True

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

    def close(self) -> None:
        """Let go of all that was seen of the pipeline."""
        self.is_open, self._sights, self._by_call = False, {}, {}

    def seen(self, arguments: PromptKey) -> Reading | None:
        """What a call with these arguments was seen to read."""
        return self._by_call.get(arguments)

    def remember(self, arguments: PromptKey, sight: Sight) -> None:
        """Note what a call with these arguments read."""
        self._keep(sight.reading, sight)
        if len(self._by_call) > 64 + 4 * len(self.cache.store):
            self._by_call = {}  # calls whose entries left long ago; the others are found when they miss
        self._by_call[arguments] = sight.reading

    def look(self, reading: Reading) -> Sight:
        """What is read now. Cost: see `Survey.holds`; if something changed, that of a survey.

        Raises:
            UnkeyableError: something can change unseen.
        """
        pipeline, old = self.pipeline, self._sights.get(reading)
        if old is not None and old.holds(pipeline):
            return old
        with self._lock:
            other = self._sights.get(reading)
            if other is not None and other is not old and other.holds(pipeline):
                return other  # another thread has looked meanwhile
            sight = Sight.of(pipeline, reading, self.surveys())
            self._keep(reading, sight)
        if old is not None and old.state.weights != sight.state.weights:
            self.cache.drop_calls(old.state.weights)
        return sight

    def surveys(self) -> dict[int, Survey]:
        """Everything that was seen, by the id of the value: it may still be so."""
        return {name: survey for sight in self._sights.values() for name, survey in sight.surveys.items()}

    def idle(self) -> frozenset[str]:
        """Paths of modules that calls look up and that did not run so far."""
        sights = self._sights.values()
        return frozenset().union(*[each.idle for each in sights]).difference(*[each.reading.whole for each in sights])

    def key(self, arguments: PromptKey, sight: Sight) -> PromptKey:
        """The key of a call in the state of a sight."""
        target = sight.device() if arguments.target is None else arguments.target
        return PromptKey(((self.epoch, *sight.state), target, *arguments[2:]))

    def keys(self, arguments: PromptKey) -> list[PromptKey]:
        """The keys of a call by every reading, as of now."""
        keys = []
        for reading in self._sights:
            try:
                keys.append(self.key(arguments, self.look(reading)))
            except UnkeyableError:  # then it holds no more
                continue
        return keys

    def arguments(self, pipeline: Any, bound: dict[str, Any]) -> PromptKey:
        """The key of a call but for its state, which is None: the device that it wants its tensors on, its arguments,
        and torch's settings of this thread."""
        ambient = autocast_state(), str(torch.get_default_dtype()), torch.get_float32_matmul_precision()
        parts: list[Any] = [None, self._target(pipeline, bound), ambient]
        for name, value in bound.items():
            if value is None or (name == "device" and type(value) in _DEVICES):
                parts.append(None)
            elif name in self._embeds or (name == self._surplus and _has_embeds(value)):
                raise UnkeyableError("embeds")
            else:
                parts.append(freeze(value))
        return PromptKey(parts)

    def _keep(self, reading: Reading, sight: Sight) -> None:
        with self._lock:  # the latest last, so that its surveys are the ones to try
            sights = {**{each: kept for each, kept in self._sights.items() if each != reading}, reading: sight}
            # Without those of modules that are gone: a call that runs a module of its own adds one each time.
            self._sights = {each: sights[each] for each in sights if all(stray() is not None for stray in each.strays)}

    def _target(self, pipeline: Any, bound: dict[str, Any]) -> torch.device | None:
        """The device for this call's tensors: its ``device``, else the pipeline's; None for its encoder's."""
        device = bound.get("device")
        if device is None and "device" in bound:
            device = getattr(pipeline, "_execution_device", None)
        return device if device is None or type(device) is torch.device else torch.device(device)


def _close(call: EncodeCall | None) -> None:
    if call is not None:
        call.close()


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
