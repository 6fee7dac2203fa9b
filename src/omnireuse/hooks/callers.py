"""Whose code runs: a pipeline's call, a callback that its caller has given, or a loop of a user's own.

Pipelines share denoisers and schedulers (`from_pipe`), which do not know their callers. A pipeline with reuse names
itself when it is called, and so does a callback. If nobody has named himself, the stack of this thread shows whether
the call of a diffusers pipeline without reuse runs.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from omnireuse.hooks.interception import MethodCall, intercept

__all__ = ["CALLERS", "call_back", "callbacks_aside", "calling", "is_called_by", "pipeline_without_reuse"]

_BASES = (
    ("diffusers.pipelines.pipeline_utils", "DiffusionPipeline"),
    ("diffusers.modular_pipelines.modular_pipeline", "ModularPipeline"),
)
_CALLBACK = object()
"""Stands for a callback among the callers: its calls of a pipeline's parts are its own."""

CALLERS: ContextVar[tuple[Any, ...]] = ContextVar("omnireuse_callers", default=())
"""The calls under way in this context, the innermost last."""


@contextmanager
def calling(who: object) -> Iterator[None]:
    """Name the pipeline whose call runs within."""
    token = CALLERS.set((*CALLERS.get(), who))
    try:
        yield
    finally:
        CALLERS.reset(token)


def is_called_by(pipeline: object) -> bool:
    """True if the code that runs is this pipeline's, or a loop of a user's own.

    A pipeline that is one of this pipeline's parts (Stable Cascade's prior and decoder) calls for it. A callback does
    not, nor does any other pipeline. For an object that cannot be called, as around a bare denoiser, every pipeline
    without reuse calls.
    """
    callers = CALLERS.get()
    if not callable(pipeline):
        return not callers or callers[-1] is not _CALLBACK
    for who in reversed(callers):
        if who is pipeline:
            return True
        if who is _CALLBACK or not any(value is who for value in getattr(pipeline, "__dict__", {}).values()):
            return False
    return not callers and pipeline_without_reuse() is None


def pipeline_without_reuse() -> str | None:
    """The class of the diffusers pipeline without reuse whose call runs; None if there is none.

    Cost: a look at the name of each function on the stack, up to a callback's.
    """
    callers = CALLERS.get()
    if callers and callers[-1] is not _CALLBACK:
        return None  # A pipeline with reuse has named itself.
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not call_back.__code__:
        if frame.f_code.co_name == "__call__" and (found := _pipeline_of(frame.f_code)) is not None:
            return found
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=256)
def _pipeline_of(code: types.CodeType) -> str | None:
    """The diffusers pipeline whose `__call__` this is; None for other code."""
    left = [getattr(sys.modules.get(module), name, None) for module, name in _BASES]
    while left:
        if (cls := left.pop()) is None:
            continue
        own = vars(cls).get("__call__")
        if own is not None and getattr(inspect.unwrap(own), "__code__", None) is code:
            return str(cls.__name__)
        left += cls.__subclasses__()
    return None


@contextmanager
def callbacks_aside(
    args: Sequence[Any], kwargs: Mapping[str, Any], touched: list[list[str]] | None = None
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of a pipeline's call, whose callbacks are no part of it while they run.

    A function is wrapped. An object with a `__call__` of its class (diffusers' `PipelineCallback`) is intercepted until
    the end of the call, because pipelines ask for its type.

    Args:
        touched: gets an entry after each callback: the names of the tensors but the latents that it has replaced or
            written to.
    """

    with ExitStack() as stack:

        def called(call: MethodCall) -> Any:
            return call_back(touched, call.proceed, *call.args, **call.kwargs)

        def aside(value: object) -> Any:
            if not callable(value) or isinstance(value, (type, torch.nn.Module)):
                return value
            if any(isinstance(vars(cls).get("__call__"), types.FunctionType) for cls in type(value).__mro__):
                stack.callback(intercept(value, call_back, {"__call__": called}).undo)
                return value
            return functools.update_wrapper(functools.partial(call_back, touched, value), value)

        yield tuple(map(aside, args)), {name: aside(value) for name, value in kwargs.items()}


def call_back(touched: list[list[str]] | None, proceed: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Call a callback, which is named while it runs; then note what it has changed, as `callbacks_aside` says."""
    before: dict[str, tuple[Any, int | None]] | None = None
    if touched is not None and args and isinstance(args[-1], dict):
        # Tensors by name, the last argument of a callback at a step's end; changes in place are counted.
        before = {
            name: (value, value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None)
            for name, value in args[-1].items()
            if name != "latents"
        }
    token = CALLERS.set((*CALLERS.get(), _CALLBACK))
    try:
        result = proceed(*args, **kwargs)
    finally:
        CALLERS.reset(token)
    if touched is not None:
        touched.append([] if before is None else _changed(before, result))
    return result


def _changed(before: Mapping[str, tuple[Any, int | None]], result: object) -> list[str]:
    """The names of what a callback has written to, or returned in place of what it was given."""
    changed = [name for name, (value, seen) in before.items() if seen is not None and value._version != seen]
    for name, value in result.items() if isinstance(result, Mapping) else ():
        if name == "latents":
            continue
        given, _ = before.get(name, (None, None))
        are_tensors = isinstance(value, torch.Tensor) and isinstance(given, torch.Tensor)
        is_same = value is given or (are_tensors and torch.equal(value, given))
        changed += [] if is_same else [name]
    return changed
