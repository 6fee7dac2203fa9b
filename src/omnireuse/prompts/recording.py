"""Record what one call of `encode_prompt` reads: attributes of its pipeline, and the modules that run."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from omnireuse.prompts.code import counted_at
from omnireuse.prompts.reading import ABSENT, Sight, look_up

__all__ = ["Recording", "is_recording"]

_ACCESS = ("__getattribute__", "__setattr__", "__delattr__")
_ASKED = frozenset({"parameters", "named_parameters", "modules", "named_modules", "children", "to", "eval", "train"})
_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"  # ours changes nothing
_here = threading.local()
_lock = threading.Lock()
_recorded: dict[type, tuple[int, dict[str, Any]]] = {}
_handles: list[Any] = []


def is_recording() -> bool:
    """Whether this thread is inside of a recorded call."""
    return getattr(_here, "recording", None) is not None


class Recording:
    """A context in which the reads of this thread are noted.

    Args:
        sight: takes what is read, as it is at the first look. What the call itself set before is not read.

    Attributes:
        left: attributes that the call set, with their last values.
        spoiled: attributes that the call updates (see `counted_at`) and also read for another reason.
    """

    def __init__(self, sight: Sight) -> None:
        self.pipeline, self.sight = sight.pipeline, sight
        self.left: dict[str, Any] = {}
        self.spoiled: set[str] = set()
        self._counters: set[str] = set()
        self._ran: set[int] = set()
        self._kinds = [type(self.pipeline)]
        self.is_paused = False

    def __enter__(self) -> Recording:
        self.sight.add("encode_prompt", look_up(self.pipeline, "encode_prompt"))
        _begin(type(self.pipeline))
        _here.recording = self
        return self

    def __exit__(self, *error: object) -> None:
        _here.recording = None
        for kind in self._kinds:
            _end(kind)
        self.left = {name: value for name, value in self.left.items() if name not in self._counters}

    def is_about(self, thing: object) -> bool:
        """Whether reads of ``thing`` are noted now: the pipeline, and modules that were found on it."""
        return not self.is_paused and (thing is self.pipeline or id(thing) in self.sight.modules)

    def read(self, thing: Any, name: str, get: Callable[[Any, str], Any], caller: types.FrameType) -> Any:
        """The value of an attribute, by ``get``, the class's own way. What a property reads is in its value."""
        self.is_paused, value = True, ABSENT
        try:
            try:
                value = get(thing, name)
            except AttributeError:
                fallback = getattr(type(thing), "__getattr__", None)
                if fallback is None:
                    raise
                value = fallback(thing, name)
            return value
        finally:
            if thing is not self.pipeline:
                self._use(thing, name, value)
            else:
                for each, held in dict(value).items() if name == "__dict__" else ((name, value),):
                    self._note(each, held, caller)
            self.is_paused = False

    def _use(self, module: nn.Module, name: str, value: Any) -> None:
        """A part of a module that was read is used; its dtype, device and settings are not its weights."""
        is_part = isinstance(value, (torch.Tensor, nn.Module))
        if is_part or (type(value) is types.MethodType and name not in _ASKED and not name.startswith("_")):
            self.runs(module)

    def _note(self, name: str, value: Any, caller: types.FrameType) -> None:
        if name.startswith("__") and name.endswith("__"):
            return
        if name not in self.left and counted_at(caller.f_code, caller.f_lineno) == name:
            self._counters.add(name)
        elif name in self._counters:
            self.spoiled.add(name)
        elif name not in self.left:
            is_own = type(value) is types.MethodType and value.__self__ is self.pipeline
            self.sight.add(name, value.__func__ if is_own else value)
            if isinstance(value, nn.Module) and not any(
                "_compiled_call_impl" in vars(part) for part in value.modules()
            ):
                self._kinds.append(type(value))  # torch.compile refuses classes that note reads
                _begin(type(value))

    def runs(self, module: nn.Module) -> None:
        """A module is about to run."""
        if id(module) not in self._ran:
            was_paused, self.is_paused = self.is_paused, True
            try:
                self._ran |= self.sight.use(module)
            finally:
                self.is_paused = was_paused


def _current(thing: object) -> Recording | None:
    recording: Recording | None = getattr(_here, "recording", None)
    return recording if recording is not None and recording.is_about(thing) else None


def note_run(module: nn.Module, _inputs: Any) -> None:
    """The forward pre-hook of all modules of the process while a recording goes on."""
    if not torch.compiler.is_compiling():
        recording: Recording | None = getattr(_here, "recording", None)
        if recording is not None and not recording.is_paused:
            recording.runs(module)


def _begin(kind: type) -> None:
    """Let accesses to attributes of ``kind`` be noted."""
    with _lock:
        count, own = _recorded.get(kind, (0, {}))
        if not count:
            own = {name: vars(kind)[name] for name in _ACCESS if name in vars(kind)}
            for access in _accesses(kind):
                setattr(kind, access.__name__, access)
        _recorded[kind] = count + 1, own
        if not _handles:
            if "torch._dynamo" in sys.modules and not any(_WARNING in str(each[1]) for each in warnings.filters):
                warnings.filterwarnings("ignore", _WARNING)
            _handles.append(register_module_forward_pre_hook(note_run))


def _end(kind: type) -> None:
    with _lock:
        count, own = _recorded.pop(kind)
        if count > 1:
            _recorded[kind] = count - 1, own
            return
        for name in _ACCESS:
            if name in own:
                setattr(kind, name, own[name])
            else:
                delattr(kind, name)
        if not _recorded:
            _handles.pop().remove()


def _accesses(kind: type) -> tuple[Any, ...]:
    get, put, drop = (getattr(kind, name) for name in _ACCESS)

    def __getattribute__(self: Any, name: str) -> Any:
        recording = _current(self)
        return get(self, name) if recording is None else recording.read(self, name, get, sys._getframe(1))

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if (recording := _current(self)) is not None and recording.pipeline is self:
            recording.left[name] = value
        put(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        if (recording := _current(self)) is not None and recording.pipeline is self:
            recording.left[name] = ABSENT
        drop(self, name)

    return __getattribute__, __setattr__, __delattr__
