"""Calls of one pipeline's `encode_prompt`: arguments by name, keys, and what such calls depend on."""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from omnireuse.fingerprints.plain import UnkeyableError, freeze
from omnireuse.fingerprints.survey import Survey, checked
from omnireuse.pipelines.snapshot import autocast_state
from omnireuse.prompts.cache import PromptEmbedCache
from omnireuse.prompts.code import Code
from omnireuse.prompts.entry import Entry, Outside
from omnireuse.prompts.keys import PromptKey, is_embeds_name
from omnireuse.prompts.look import Look
from omnireuse.prompts.view import Scope, State, View, Writes, held_by

__all__ = ["EncodeCall", "own_function"]

logger = logging.getLogger("omnireuse")

_DEVICES = (str, int, torch.device)
_EPOCHS = itertools.count()  # of all pipelines, so that no epoch comes again
_MANY = 10  # misses in a row of calls that were encoded before


class EncodeCall:
    """One ``encode_prompt`` function of one pipeline in one epoch: nothing seen in another one counts.

    Args:
        pipeline: held weakly.
        original: the function that the instance itself had; None for that of its class.
        cache: where the results go.
        tag: names the model in the store outside the process.
    """

    def __init__(self, pipeline: object, original: Any, cache: PromptEmbedCache, tag: str | None) -> None:
        self._lock, this = threading.RLock(), weakref.ref(self)
        self._look: Look | None = None
        self._surveys: dict[str, Survey] = {}
        self._scopes: dict[tuple[Any, ...], Scope] = {}
        self._states: dict[Scope, tuple[View, tuple[int, ...], State]] = {}
        self.writes = Writes(self)
        self._num_missed, self._has_warned = 0, False
        self._last_missed: View | None = None
        self._pipeline, self._original = weakref.ref(pipeline, lambda _: _close(this())), original
        function = self.function
        self._code = getattr(function, "__func__", function)
        self.code = Code(pipeline, original)
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
        self.is_open, self._look, self._last_missed = False, None, None
        self._surveys, self._scopes, self._states = {}, {}, {}

    def scope(self, arguments: PromptKey) -> Scope | None:
        """What counts for a call with these arguments, if there was one; the device of the result is none of it."""
        return self._scopes.get(arguments[2:])

    def remember(self, arguments: PromptKey, scope: Scope) -> None:
        """Note what counts for a call with these arguments."""
        with self._lock:
            most = 64 + 4 * len(self.cache.store)
            if len(self._scopes) > most:  # the first of them belongs to a call whose entry left long ago
                del self._scopes[next(iter(self._scopes))]
            self._scopes[arguments[2:]] = scope
            if len(self._states) > most:
                self._states = {}

    def look(self) -> Look:
        """What the pipeline holds now under the names that its code mentions.

        Raises:
            UnkeyableError: something can change unseen.
        """
        old = self._look
        if old is None or not old.holds():
            with self._lock:
                if self._look is None or self._look is old or not self._look.holds():  # no other thread has looked
                    self._look = Look(self.pipeline, self.code, self._look)
                old = self._look
        return old

    def survey(self, path: str, value: Any) -> Survey:
        """All that a module, or what else counts whole, holds now; its weights are digested at once, before a call may
        use or change them.

        Raises:
            UnkeyableError: something can change unseen.
        """
        old = self._surveys.get(path)
        if old is not None and old.value is not value:
            old = None
        if old is None or not old.holds():
            with checked():
                old = Survey(value, path, self.pipeline, old)
                old.sums()
            with self._lock:
                alive = {each: survey for each, survey in self._surveys.items() if survey.value is not None}
                self._surveys = alive | {path: old}
        return old

    def view(self, scope: Scope) -> View:
        """What counts for a call now.

        Raises:
            UnkeyableError: something can change unseen.
        """
        look = self.look()
        found = look.whole | {path: module for path in scope.ran if (module := look.module(path)) is not None}
        return View(look, {path: self.survey(path, value) for path, value in found.items()})

    def state(self, scope: Scope, view: View) -> State:
        """The state of a view. If weights changed, the entries of the old ones are dropped: they never come back."""
        written = self.writes.of_others(view, scope.own)
        known = self._states.get(scope)
        if known is not None and known[:2] == (view, written):
            return known[2]
        state = view.state(frozenset(scope.own), written)
        self._states[scope] = view, written, state
        if known is not None and known[2].weights != state.weights:
            self.cache.drop_calls(known[2].weights)
        return state

    def now(self, scope: Scope) -> tuple[View, State]:
        """What counts for a call now, and its state."""
        view = self.view(scope)
        return view, self.state(scope, view)

    def key(self, arguments: PromptKey, view: View, state: State) -> PromptKey:
        """The key of a call in a state."""
        wants = torch.is_grad_enabled() and view.wants_gradients()
        target = view.device() if arguments.target is None else arguments.target
        return PromptKey(((self.epoch, *state[:2], wants), target, *arguments[2:]))

    def key_now(self, arguments: PromptKey) -> PromptKey | None:
        """The key of a call now; None if there was none with these arguments.

        Raises:
            UnkeyableError: something can change unseen.
        """
        scope = self.scope(arguments)
        return None if scope is None else self.key(arguments, *self.now(scope))

    def hit(self, arguments: PromptKey, entry: Entry) -> None:
        """An entry is used: what its encoding stored anew is stored again."""
        self._num_missed = 0
        scope = self.scope(arguments) if entry.left else None
        if scope is not None:
            view = self.view(scope)
            for path, value in entry.left:
                owner, name = view.owner(path)
                held = held_by(owner, name)
                if owner is not None and (type(held) is not type(value) or held != value):
                    self.writes.begin()
                    try:
                        if type(owner) is dict:
                            owner[name] = copy.deepcopy(value)
                        else:
                            setattr(owner, name, copy.deepcopy(value))
                    finally:
                        self.writes.end()

    def aside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call past the cache. What it writes is written by a call."""
        if not self.writes.are_known:
            return self.function(*args, **kwargs)
        self.writes.begin()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.writes.end()

    def missed(self, before: View, after: View, others: Sequence[str], *, is_known: bool) -> None:
        """Note a miss. If calls are encoded again and again although they were encoded before, say so once."""
        last, self._last_missed = self._last_missed, after
        self._num_missed += is_known
        if self._num_missed < _MANY or self._has_warned:
            return
        differing = sorted({*others, *(() if last is None else last.moved(before))})
        if not differing and not self.cache.store.counts["evictions"]:
            return
        self._has_warned = True
        room = f"they are more than there is room for (max_size={self.cache.max_size})"
        logger.warning(
            "prompt-embedding cache: %d calls in a row were encoded again, although their arguments had been encoded "
            "before: %s; see docs/prompt-embeddings.md, Calls that are not cached",
            self._num_missed, f"what changes from call to call: {', '.join(differing[:5])}" if differing else room,
        )  # fmt: skip

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
