"""Stand between an object and its callers without changing its type or its attributes.

**Modules.** torch keeps a slot for a replaced call (`Module._compiled_call_impl`), which `module.compile()` uses. Calls
of the module go through the slot, hooks and wrappers stay inside, and `Module.__getstate__` leaves it out, so copies
and pickles have none. What was in the slot before is called inside.

**Everything else.** A dispatcher takes the place of the method in the class that defines it. It knows the intercepted
instances by identity and calls straight through for all others. It comes with the first interception of that method and
goes with the last, so nothing lies on the instance that a copy could take along.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from omnireuse import messages
from omnireuse.errors import UnsupportedModelError

__all__ = [
    "Handler",
    "Interception",
    "MethodCall",
    "compiled_call",
    "intercept",
    "is_bypassed",
    "is_optimized",
]


@dataclass(frozen=True)
class MethodCall:
    """A call that was intercepted: `proceed(*args, **kwargs)` makes it, by the method or by the next interceptor."""

    proceed: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def values(self) -> tuple[Any, ...]:
        """The arguments, without their names."""
        return *self.args, *self.kwargs.values()

    def make(self) -> Any:
        return self.proceed(*self.args, **self.kwargs)


Handler = Callable[[MethodCall], Any]
"""Called instead of the method; returns what its caller gets."""

_SLOT = "_compiled_call_impl"
# Reentrant, because a collection of garbage within may end an interception.
_lock = threading.RLock()


@dataclass(eq=False)
class Interception:
    """One owner's handlers on one object. It lasts until `undo`; on objects that are no modules, also no longer than
    somebody holds it. `intercept` describes the arguments, and `places` are its slots and dispatchers."""

    owner: object
    handlers: Mapping[str, Handler]
    eager: Callable[[], bool] | None = None
    places: list[_Slot | _Dispatcher] = field(default_factory=list)

    def undo(self) -> None:
        """Take the handlers away; others on the same object stay. Idempotent."""
        with _lock:
            for place in self.places:
                place.remove(self)
            self.places.clear()


def intercept(
    target: Any, owner: object, handlers: Mapping[str, Handler], eager: Callable[[], bool] | None = None
) -> Interception:
    """Route calls of the named methods of one object through handlers, the latest interceptor outermost.

    Args:
        target: the object.
        owner: of the handlers.
        handlers: by the names of the methods.
        eager: for a module, asked at each call: whether it runs without `torch.compile` this time.

    Raises:
        UnsupportedModelError: an object that carries one of the methods as an attribute of its own, which would not be
            intercepted, or whose class cannot be changed.
    """
    interception = Interception(owner, dict(handlers), eager)
    try:
        with _lock:
            for name in interception.handlers:
                has_slot = name == "__call__" and _calls_through_slot(target)
                receiver = target if has_slot else _receiver(target, name)
                _refuse_own(receiver, name)
                place: _Slot | _Dispatcher = _slot_of(target) if has_slot else _dispatcher_for(receiver, name)
                place.add(interception, receiver)
                interception.places.append(place)
    except BaseException:
        interception.undo()
        raise
    return interception


def is_bypassed(owner: object) -> bool:
    """True if somebody has overwritten the slot of one of the owner's modules, as `module.compile()` does."""
    with _lock:
        for slot in _slots:
            if vars(slot.module).get(_SLOT) is not slot and any(layer.owner is owner for layer in slot.layers):
                return True
    return False


def is_optimized(module: torch.nn.Module) -> bool:
    """True if this is a result of `torch.compile(module)`."""
    return "OptimizedModule" in (cls.__name__ for cls in type(module).__mro__)


def _enter(handler: Handler, proceed: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Make a call that an outer interceptor goes on with."""
    return handler(MethodCall(proceed, args, kwargs))


def _refuse_own(target: object, name: str) -> None:
    if name in getattr(target, "__dict__", {}):
        raise UnsupportedModelError(messages.REPLACED_ON_OBJECT, kind=type(target).__name__, name=name)


def _calls_through_slot(target: object) -> bool:
    """True if calls of this object end up in `Module.__call__`, which asks the slot."""
    if not isinstance(target, torch.nn.Module):
        return False
    definer = _definer(target, "__call__")
    return definer is torch.nn.Module or is_optimized(target)


class _Slot:
    """The content of a module's slot."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.layers: tuple[Interception, ...] = ()
        # Not by attribute: `OptimizedModule` hands attributes on to the module inside.
        self._was_there = _SLOT in vars(module)
        self._inner = vars(module).get(_SLOT)
        vars(module)[_SLOT] = self
        _slots.add(self)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        # Asked at each call, so that a bound method which somebody kept follows what is enabled now.
        proceed, handler = self._innermost, None
        for layer in self.layers:
            proceed = proceed if handler is None else functools.partial(_enter, handler, proceed)
            handler = layer.handlers["__call__"]
        return proceed(*args, **kwargs) if handler is None else handler(MethodCall(proceed, args, kwargs))

    def _innermost(self, *args: object, **kwargs: object) -> Any:
        if any(layer.eager is not None and layer.eager() for layer in self.layers):
            return self._uncompiled(*args, **kwargs)
        inner = self.module._call_impl if self._inner is None else self._inner
        return inner(*args, **kwargs)

    def _uncompiled(self, *args: object, **kwargs: object) -> Any:
        module: Any = self.module
        return (module._orig_mod if is_optimized(module) else module._call_impl)(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # DistributedDataParallel copies its attributes by itself.
        return type(None), ()

    @property
    def compiled(self) -> Any:
        """The slot's content without interceptions."""
        return self._inner.compiled if isinstance(self._inner, _Slot) else self._inner

    @property
    def is_in_place(self) -> bool:
        """True if it lies in the slot."""
        return vars(self.module).get(_SLOT) is self

    def add(self, interception: Interception, receiver: object) -> None:
        """Put this interception before the others."""
        self.layers = (*self.layers, interception)

    def remove(self, interception: Interception) -> None:
        """Remove the interception, and leave the slot after the last one."""
        self.layers = tuple(layer for layer in self.layers if layer is not interception)
        if self.layers or not self.is_in_place:
            return
        if self._was_there:
            vars(self.module)[_SLOT] = self._inner
        else:
            del vars(self.module)[_SLOT]


_slots: weakref.WeakSet[_Slot] = weakref.WeakSet()


def compiled_call(module: torch.nn.Module) -> Any:
    """The compiled call that `module.compile()` put into the module's slot, or None."""
    found = vars(module).get(_SLOT)
    return found.compiled if isinstance(found, _Slot) else found


def _slot_of(module: torch.nn.Module) -> _Slot:
    found = vars(module).get(_SLOT)
    return found if isinstance(found, _Slot) and found.module is module else _Slot(module)


def _definer(target: object, name: str) -> Any:
    return next((cls for cls in type(target).__mro__ if name in vars(cls)), None)


def _receiver(target: object, name: str) -> Any:
    """The object whose class defines the method: wrappers of torch.compile and PEFT hand on to the model inside."""
    if _definer(target, name) is not None:
        return target
    return getattr(getattr(target, name), "__self__", target)


class _Layer(NamedTuple):
    """One interception of one instance. Both are held weakly, because the one leads to the other."""

    interception: weakref.ref[Interception]
    receiver: Callable[[], Any]


class _Dispatcher:
    """A method of a class, which calls the interceptions of each instance."""

    def __init__(self, definer: Any, name: str) -> None:
        self._definer, self._name = definer, name
        self._original = vars(definer)[name]
        self._layers: dict[int, tuple[_Layer, ...]] = {}
        self._method = self._make()
        try:
            setattr(definer, name, self._method)
        except (TypeError, AttributeError) as error:
            raise UnsupportedModelError(f"{definer.__name__}.{name} cannot be intercepted: {error}") from error
        _dispatchers.append(self)

    def _make(self) -> Callable[..., Any]:
        original, layers, name = self._original, self._layers, self._name

        @functools.wraps(original)
        def method(self: object, *args: object, **kwargs: object) -> Any:
            proceed, handler = original.__get__(self, type(self)), None
            for layer in layers.get(id(self), ()):
                interception = layer.interception()
                if interception is not None and layer.receiver() is self:
                    proceed = proceed if handler is None else functools.partial(_enter, handler, proceed)
                    handler = interception.handlers[name]
            return proceed(*args, **kwargs) if handler is None else handler(MethodCall(proceed, args, kwargs))

        return method

    @property
    def is_outermost(self) -> bool:
        """True if the class has it as it was placed."""
        return vars(self._definer).get(self._name) is self._method

    def add(self, interception: Interception, receiver: object) -> None:
        """Put this interception before the others of the same instance."""
        key = id(receiver)

        def gone(_: object) -> None:
            self._clean(key, None)

        try:
            held: Callable[[], Any] = weakref.ref(receiver, gone)
        except TypeError:
            # Kept until `undo`, so that no other object gets its identity meanwhile.
            held = lambda: receiver  # noqa: E731  # two kinds of references behind one name
        layer = _Layer(weakref.ref(interception, gone), held)
        self._layers[key] = (*self._layers.get(key, ()), layer)

    def remove(self, interception: Interception) -> None:
        """Remove the interception, and leave the class after the last one."""
        for key in list(self._layers):
            self._clean(key, interception)

    def _clean(self, key: int, gone: Interception | None) -> None:
        with _lock:
            layers = self._layers.get(key, ())
            left = tuple(
                each for each in layers if each.receiver() is not None and each.interception() not in (None, gone)
            )
            if left:
                self._layers[key] = left
            else:
                self._layers.pop(key, None)
            self._leave_unused()

    def _leave_unused(self) -> None:
        if self._layers:
            return
        if self.is_outermost:
            setattr(self._definer, self._name, self._original)
        # An interception that somebody wrapped stays, and calls straight through.
        if self in _dispatchers:
            _dispatchers.remove(self)

    def is_for(self, definer: object, name: str) -> bool:
        """True if this handles the method, and its callers meet it first."""
        return self._definer is definer and self._name == name and self.is_outermost


_dispatchers: list[_Dispatcher] = []


def _dispatcher_for(receiver: object, name: str) -> _Dispatcher:
    definer = _definer(receiver, name)
    if definer is None:
        raise UnsupportedModelError(f"{type(receiver).__name__}.{name} is no method of its class: nothing to intercept")
    known = next((each for each in _dispatchers if each.is_for(definer, name)), None)
    return _Dispatcher(definer, name) if known is None else known
