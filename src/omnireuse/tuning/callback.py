"""The callback of one call of a pipeline: what it changed, and what it is called with again while trial runs go on."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.hooks.callers import call_back
from omnireuse.hooks.interception import MethodCall, intercept

__all__ = ["Callback"]

_PLAIN = (bool, int, float, str, type(None))


class Callback:
    """The callbacks among the arguments of one call; those whose names begin with "callback".

    Args:
        pipeline: that is called.
        kwargs: of the call.

    Attributes:
        name: which functions they are, for calls that come later; empty if there are none.
        changes: what they have changed, in words; empty as long as they only look on.
    """

    def __init__(self, pipeline: object, kwargs: Mapping[str, Any]) -> None:
        self._pipeline, self._kwargs = pipeline, kwargs
        self._callbacks = {
            name: value
            for name, value in kwargs.items()
            if name.startswith("callback") and callable(value) and not isinstance(value, (type, torch.nn.Module))
        }
        self.name = ", ".join(map(_name, self._callbacks.values()))
        self.changes = ""
        self._latest: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None

    @contextmanager
    def watched(self) -> Iterator[dict[str, Any]]:
        """The arguments of the call, whose callbacks are looked at while it runs."""
        kwargs = dict(self._kwargs)
        with ExitStack() as stack:
            for name, value in self._callbacks.items():
                if isinstance(value, (FunctionType, MethodType, functools.partial)):
                    kwargs[name] = functools.update_wrapper(functools.partial(self._called, value), value)
                else:  # pipelines ask for the type of an object
                    stack.callback(intercept(value, self, {"__call__": self._intercepted}).undo)
            yield kwargs

    def beat(self) -> None:
        """Call the latest callback once more with copies of its latest arguments."""
        if self._latest is not None:
            function, args, kwargs = self._latest
            call_back(None, function, *pytree.tree_map(_cloned, args), **pytree.tree_map(_cloned, kwargs))

    def _intercepted(self, call: MethodCall) -> Any:
        return self._called(call.proceed, *call.args, **call.kwargs)

    def _called(self, proceed: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        given = {name: value for each in args if isinstance(each, Mapping) for name, value in each.items()}
        tensors = given or {f"argument {place}": each for place, each in enumerate(args)}
        marks = {name: [(each, _mark(each)) for each in _tensors(value)] for name, value in tensors.items()}
        settings = _settings(self._pipeline)
        # Copies: the dictionary is the callback's, and pipelines take what they use out of it.
        self._latest = proceed, tuple(dict(each) if isinstance(each, Mapping) else each for each in args), kwargs
        result = proceed(*args, **kwargs)
        if not self.changes:
            changed = [name for name, each in marks.items() if any(_is_changed(*pair) for pair in each)]
            if isinstance(result, Mapping):
                changed += [name for name, value in result.items() if not _is_same(value, given.get(name))]
            now = _settings(self._pipeline)
            changed += [f"the pipeline's {name}" for name in settings if now.get(name, settings) != settings[name]]
            self.changes = ", ".join(dict.fromkeys(changed))
        return result


def _name(callback: object) -> str:
    """Which function a callback is, whatever it has captured."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    function = inspect.unwrap(callback) if isinstance(callback, (FunctionType, MethodType)) else type(callback)
    code = getattr(function, "__code__", None)
    return f"{function.__module__}.{function.__qualname__}:{getattr(code, 'co_firstlineno', '')}"


def _mark(value: torch.Tensor) -> int | torch.Tensor:
    """What tells whether a tensor has been written to: its version, or a copy if it has none."""
    return value.clone() if value.is_inference() else value._version


def _is_changed(value: torch.Tensor, mark: int | torch.Tensor) -> bool:
    return not torch.equal(value, mark) if isinstance(mark, torch.Tensor) else value._version != mark


def _is_same(value: object, given: object) -> bool:
    """Whether a callback has returned what it was given."""
    if value is given:
        return True
    (own, structure), (others, like) = pytree.tree_flatten(value), pytree.tree_flatten(given)
    return structure == like and all(
        (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and bool(torch.equal(a, b))
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else a is b
        for a, b in zip(own, others, strict=True)
    )


def _settings(pipeline: object) -> dict[str, Any]:
    """The pipeline's numbers and texts of the call under way, such as its guidance. Stopping is no change of them."""
    return {
        name: value
        for name, value in getattr(pipeline, "__dict__", {}).items()
        if name.startswith("_") and name != "_interrupt" and isinstance(value, _PLAIN)
    }


def _tensors(value: object) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _cloned(leaf: object) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf
