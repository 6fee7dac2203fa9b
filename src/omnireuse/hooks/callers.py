"""Whose code runs in this context: a pipeline's call, or a callback that a caller of the pipeline has given.

Pipelines share denoisers and schedulers (`from_pipe`), which do not know their callers. While reuse is enabled
anywhere, the `__call__` of every diffusers pipeline therefore names itself here, and a session reads the name.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from omnireuse.hooks.interception import ClassInterception, intercept, intercept_class

__all__ = ["CALLERS", "CallerWatch", "callbacks_aside", "calling", "foreign_caller", "in_callback", "is_called_by"]

_BASES = (
    ("diffusers.pipelines.pipeline_utils", "DiffusionPipeline"),
    ("diffusers.modular_pipelines.modular_pipeline", "ModularPipeline"),
)
_CALLBACK = object()
"""Stands for a callback among the callers: its calls of a pipeline's parts are its own."""

CALLERS: ContextVar[tuple[Any, ...]] = ContextVar("omnireuse_callers", default=())
"""The calls under way in this context, the innermost last."""


@contextmanager
def calling(who: Any) -> Iterator[None]:
    """Name the pipeline whose call runs within."""
    token = CALLERS.set((*CALLERS.get(), who))
    try:
        yield
    finally:
        CALLERS.reset(token)


def in_callback() -> AbstractContextManager[None]:
    """Within it, a callback runs: its calls of a pipeline's parts are its own."""
    return calling(_CALLBACK)


def is_called_by(pipeline: Any) -> bool:
    """True if the code that runs is this pipeline's, or a loop of a user's own.

    A pipeline that is one of this pipeline's parts (Stable Cascade's prior and decoder) calls for it. A callback does
    not, nor does any other pipeline. For an object that cannot be called, as around a bare denoiser, every pipeline
    calls.
    """
    callers = CALLERS.get()
    if not callable(pipeline):
        return not callers or callers[-1] is not _CALLBACK
    for who in reversed(callers):
        if who is pipeline:
            return True
        if who is _CALLBACK or not any(value is who for value in getattr(pipeline, "__dict__", {}).values()):
            return False
    return not callers


def foreign_caller() -> Any | None:
    """The pipeline whose call runs; None in a callback and in a loop of a user's own."""
    callers = CALLERS.get()
    return callers[-1] if callers and callers[-1] is not _CALLBACK else None


After = Callable[[Sequence[str]], None]
"""Called when a callback has run, with the names of the tensors that it has replaced or written to."""


@contextmanager
def callbacks_aside(
    args: Sequence[Any], kwargs: Mapping[str, Any], after: After | None = None
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of a pipeline's call, whose callbacks are no part of it while they run.

    A function is wrapped. An object with a `__call__` of its class (diffusers' `PipelineCallback`) is intercepted until
    the end of the call, because pipelines ask for its type.
    """

    with ExitStack() as stack:

        def aside(value: Any) -> Any:
            if not callable(value) or isinstance(value, (type, torch.nn.Module)):
                return value
            if any(isinstance(vars(cls).get("__call__"), types.FunctionType) for cls in type(value).__mro__):
                stack.callback(intercept(value, _called, {"__call__": functools.partial(_called, after)}).undo)
                return value
            if isinstance(value, functools.partial) and value.func is _called:
                _, value = value.args  # of the same call, at the pipeline's class: to be named once
            return functools.update_wrapper(functools.partial(_called, after, value), value)

        yield tuple(map(aside, args)), {name: aside(value) for name, value in kwargs.items()}


def _called(after: After | None, proceed: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Call a callback, which is named while it runs; then tell `after` what it has changed."""
    # A function that is given no tensors by name, as the last argument, is no callback at a step's end.
    before = _seen(args[-1]) if after is not None and args and isinstance(args[-1], dict) else None
    token = CALLERS.set((*CALLERS.get(), _CALLBACK))
    try:
        result = proceed(*args, **kwargs)
    finally:
        CALLERS.reset(token)
    if after is not None:
        after(() if before is None else _changed(before, result))
    return result


def _seen(given: Mapping[str, Any]) -> dict[str, tuple[Any, int | None]]:
    """What a callback is given, with the number of a tensor's changes in place if they are counted."""
    return {
        name: (value, value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None)
        for name, value in given.items()
    }


def _changed(before: Mapping[str, tuple[Any, int | None]], result: Any) -> list[str]:
    """The names of what a callback has written to, or returned in place of what it was given."""
    changed = [name for name, (value, seen) in before.items() if seen is not None and value._version != seen]
    for name, value in result.items() if isinstance(result, Mapping) else ():
        given, _ = before.get(name, (None, None))
        is_same = value is given or (
            isinstance(value, torch.Tensor) and isinstance(given, torch.Tensor) and torch.equal(value, given)
        )
        changed += [] if is_same else [name]
    return changed


class CallerWatch:
    """The `__call__` of every diffusers pipeline names its caller, as long as somebody watches."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._watchers = 0
        self._classes: dict[type, ClassInterception] = {}
        self._bases: list[tuple[Any, Any]] = []
        """Base classes whose subclasses are seen when they are made, and what stood in that place."""

    def begin(self) -> None:
        """Start to watch, for one more watcher."""
        with self._lock:
            self._watchers += 1
            self.look()

    def look(self) -> None:
        """Watch the pipelines of a module that was imported since."""
        with self._lock:
            for module, name in _BASES:
                base = getattr(sys.modules.get(module), name, None)
                if base is not None and all(base is not known for known, _ in self._bases):
                    self._watch_subclasses(base)
                    for cls in _with_subclasses(base):
                        self._watch(cls)

    def end(self) -> None:
        """Stop to watch, for one watcher. The last one restores every class."""
        with self._lock:
            self._watchers -= 1
            if self._watchers:
                return
            for base, before in self._bases:
                if before is None:
                    del base.__init_subclass__
                else:
                    base.__init_subclass__ = before
            for interception in self._classes.values():
                interception.undo()
            self._bases.clear()
            self._classes.clear()

    def _watch_subclasses(self, base: Any) -> None:
        before = vars(base).get("__init_subclass__")

        def made(cls: type[Any], /, **kwargs: Any) -> None:
            if before is None:
                super(base, cls).__init_subclass__(**kwargs)
            else:
                before.__get__(None, cls)(**kwargs)
            with self._lock:
                if self._watchers:
                    self._watch(cls)

        base.__init_subclass__ = classmethod(made)
        self._bases.append((base, before))

    def _watch(self, cls: Any) -> None:
        if "__call__" in vars(cls) and cls not in self._classes:
            self._classes[cls] = intercept_class(cls, "__call__", _called_by)


def _called_by(proceed: Callable[..., Any], pipeline: Any, *args: object, **kwargs: object) -> Any:
    with calling(pipeline), callbacks_aside(args, kwargs) as (given, named):
        return proceed(*given, **named)


def _with_subclasses(base: Any) -> Iterator[Any]:
    yield base
    for cls in base.__subclasses__():
        yield from _with_subclasses(cls)
