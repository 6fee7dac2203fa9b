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

from omnireuse.prompts.cache import PromptEmbedCache
from omnireuse.prompts.code import Code
from omnireuse.prompts.entry import Entry, Outside
from omnireuse.prompts.keys import Arguments, PromptKey
from omnireuse.prompts.view import Scope, State, View, held_by
from omnireuse.prompts.views import Views, Writes

__all__ = ["EncodeCall", "own_function"]

logger = logging.getLogger("omnireuse")

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
        self._pipeline, self._original = weakref.ref(pipeline, lambda _: _close(this())), original
        function = self.function
        self._code, self.arguments = getattr(function, "__func__", function), Arguments(function)
        self.views = Views(pipeline, Code(pipeline, original))
        self.writes, self.misses, self.cache = Writes(self.views), Misses(cache), cache
        self._scopes: dict[tuple[Any, ...], Scope] = {}
        self._states: dict[Scope, tuple[View, tuple[int, ...], State]] = {}
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
        self.is_open, self._scopes, self._states, self.misses = False, {}, {}, Misses(self.cache)
        self.views.close()

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
        if scope is None:
            return None
        view = self.views.view(scope)
        return self.key(arguments, view, self.state(scope, view))

    def hit(self, arguments: PromptKey, entry: Entry) -> None:
        """An entry is used: what its encoding stored anew is stored again."""
        self.misses.end()
        scope = self.scope(arguments) if entry.left else None
        if scope is not None:
            view = self.views.view(scope)
            for path, value in entry.left:
                owner, name = view.owner(path)
                held = held_by(owner, name)
                if owner is not None and (type(held) is not type(value) or held != value):
                    with self.writes.of_a_call():
                        if type(owner) is dict:
                            owner[name] = copy.deepcopy(value)
                        else:
                            setattr(owner, name, copy.deepcopy(value))

    def aside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call past the cache. What it writes is written by a call."""
        with self.writes.of_a_call():
            return self.function(*args, **kwargs)


class Misses:
    """Misses in a row. If calls are encoded again and again although they were encoded before, it says so once.

    Args:
        cache: of the calls.
    """

    def __init__(self, cache: PromptEmbedCache) -> None:
        self._cache, self._in_a_row, self._has_warned = cache, 0, False
        self._last: View | None = None

    def end(self) -> None:
        """A call has hit."""
        self._in_a_row = 0

    def add(self, before: View, after: View, others: Sequence[str], *, is_known: bool) -> None:
        """A call has missed; `others` were written by somebody else meanwhile; it may be known from before."""
        last, self._last = self._last, after
        self._in_a_row += is_known
        if self._in_a_row < _MANY or self._has_warned:
            return
        differing = sorted({*others, *(() if last is None else last.moved(before))})
        if not differing and not self._cache.store.counts["evictions"]:
            return
        self._has_warned = True
        room = f"they are more than there is room for (max_size={self._cache.max_size})"
        logger.warning(
            "prompt-embedding cache: %d calls in a row were encoded again, although their arguments had been encoded "
            "before: %s; see docs/prompt-embeddings.md, Calls that are not cached",
            self._in_a_row, f"what changes from call to call: {', '.join(differing[:5])}" if differing else room,
        )  # fmt: skip


def _close(call: EncodeCall | None) -> None:
    if call is not None:
        call.close()


def own_function(pipeline: Any) -> Callable[..., Any]:
    """The ``encode_prompt`` of the pipeline's class, bound to it."""
    found: Any = inspect.getattr_static(type(pipeline), "encode_prompt")
    return found.__get__(pipeline, type(pipeline)) if hasattr(found, "__get__") else found  # type: ignore[no-any-return]  # callable: checked at installation
