"""Stand between an object and its callers, and leave no trace afterwards.

The object's class is exchanged for a subclass that overrides the named methods and asks the object's layers, which one
private attribute of the object holds. So hooks that others keep there (accelerate, diffusers, PEFT, compiled calls)
stay inside of ours in whatever order they come and go, a copy or a pickle of the object is a plain object of its
original class, and undoing is the exchange back. `isinstance` holds and the class keeps its name; only `type(x) is C`
sees the difference.

There is one subclass for each class, because torch.compile guards on types: with one for each object, blocks that share
compiled code would compile one by one, and every enabling would compile anew until the limit is reached.
"""

from __future__ import annotations

import copyreg
import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omnireuse.errors import UnsupportedModelError

__all__ = ["Handler", "Interception", "intercept", "interceptors_of"]

Handler = Callable[..., Any]
"""`handler(proceed, *args, **kwargs)`: called instead of the method; `proceed` is the method, or the next
interceptor."""

_LAYERS = "__omnireuse_layers__"
_BASE = "__omnireuse_base__"
_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class Interception:
    """One owner's handlers on one object."""

    target: Any
    owner: Any
    handlers: Mapping[str, Handler]

    def undo(self) -> None:
        """Take the handlers away; others on the same object stay. Idempotent."""
        with _lock:
            layers = _layers(self.target)
            if self in layers:
                _rebuild(self.target, tuple(layer for layer in layers if layer is not self))


def intercept(target: Any, owner: Any, handlers: Mapping[str, Handler]) -> Interception:
    """Route calls of the named methods of one object through handlers, the latest interceptor outermost.

    Raises:
        UnsupportedModelError: an object whose class cannot be exchanged, or which carries one of the methods as an
            attribute of its own, where a subclass would not be asked.
    """
    own = [name for name in handlers if name in getattr(target, "__dict__", {})]
    if own:
        raise UnsupportedModelError(
            f"{type(target).__name__}.{own[0]} was replaced on this object by an attribute, which would bypass reuse; "
            f"remove it or enable reuse before it is set"
        )
    interception = Interception(target, owner, dict(handlers))
    with _lock:
        _rebuild(target, (*_layers(target), interception))
    return interception


def interceptors_of(target: Any) -> tuple[Any, ...]:
    """The owners that stand before this object, innermost first."""
    return tuple(layer.owner for layer in _layers(target))


def _layers(target: Any) -> tuple[Interception, ...]:
    # A shallow copy of the attributes by others carries the layers along, which are of the original alone.
    layers: tuple[Interception, ...] = getattr(target, "__dict__", {}).get(_LAYERS, ())
    return tuple(layer for layer in layers if layer.target is target)


def _rebuild(target: Any, layers: tuple[Interception, ...]) -> None:
    base: Any = type(target).__dict__.get(_BASE, type(target))
    names = sorted({name for layer in layers for name in layer.handlers})
    # What the class has now, which somebody may have patched since the last time.
    methods = tuple((name, getattr(base, name, None)) for name in names)
    try:
        attributes = vars(target)
        target.__class__ = _subclass(base, methods) if layers else base
    except TypeError as error:
        raise UnsupportedModelError(f"{base.__name__} objects cannot be intercepted: {error}") from error
    if layers:
        attributes[_LAYERS] = layers
    else:
        attributes.pop(_LAYERS, None)


@functools.cache
def _subclass(base: Any, methods: tuple[tuple[str, Any], ...]) -> type:
    namespace: dict[str, Any] = {name: _dispatch(name, inner or _forwarded(base, name)) for name, inner in methods}
    namespace[_BASE] = base
    namespace["__module__"] = base.__module__
    namespace["__qualname__"] = base.__qualname__
    namespace["__doc__"] = base.__doc__
    namespace["__reduce_ex__"] = _reduce_as(base)
    return type(base.__name__, (base,), namespace)


def _dispatch(name: str, inner: Any) -> Handler:
    @functools.wraps(inner)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        proceed = functools.partial(inner, self)
        # Asked at each call, so that a bound method which somebody kept follows what is enabled now.
        for layer in _layers(self):
            if name in layer.handlers:
                proceed = functools.partial(layer.handlers[name], proceed)
        return proceed(*args, **kwargs)

    return method


def _forwarded(base: Any, name: str) -> Handler:
    # Wrappers of torch.compile and PEFT have no such method and hand on to the model inside.
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return base.__getattr__(self, name)(*args, **kwargs)

    return method


def _reduce_as(base: Any) -> Callable[[Any, Any], Any]:
    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = base.__reduce_ex__(self, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        constructor, arguments, *rest = reduced
        if rest and isinstance(rest[0], dict):
            rest[0] = {key: value for key, value in rest[0].items() if key != _LAYERS}
        if constructor is copyreg.__newobj__:  # type: ignore[attr-defined]  # typeshed leaves it out
            # Pickle insists that this constructor gets the object's present class; what it would call does not.
            constructor = base.__new__
        return (constructor, tuple(base if argument is type(self) else argument for argument in arguments), *rest)

    return reduce_ex
