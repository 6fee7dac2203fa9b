"""Record what one call of `encode_prompt` reads: attributes of its pipeline, and the modules that run."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from omnireuse.prompts.code import counted_at
from omnireuse.prompts.keys import UnkeyableError, is_plain
from omnireuse.prompts.survey import Survey

__all__ = ["ABSENT", "Found", "Recording", "is_recording", "look_up", "our_hooks"]

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
_ACCESS = ("__getattribute__", "__setattr__", "__delattr__")
_HOOKS_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"  # of torch: ours does no more than look
_here = threading.local()
_lock = threading.Lock()
_recorded: dict[type, tuple[int, dict[str, Any]]] = {}
_handles: list[Any] = []


def is_recording() -> bool:
    """Whether this thread is inside of a recorded call."""
    return getattr(_here, "recording", None) is not None


def our_hooks() -> frozenset[int]:
    """Ids of the process-wide forward hooks that recordings have now."""
    return frozenset([handle.id for handle in _handles])


def look_up(pipeline: object, name: str) -> Any:
    """The value of an attribute; for a method of the pipeline its function; `ABSENT` if there is none."""
    value = getattr(pipeline, name, ABSENT)
    if name == "encode_prompt":
        return getattr(value, "original", value)
    return value.__func__ if type(value) is types.MethodType and value.__self__ is pipeline else value


class Found:
    """Values that were read, by name, and a survey of each that is not plain, at the moment of the first look.

    Args:
        known: surveys of modules that may still hold, by the module's id.
        idle: paths of modules that are known not to run: their survey waits until one does.
    """

    def __init__(self, pipeline: object, known: Mapping[int, Survey], idle: frozenset[str] = frozenset()) -> None:
        self.pipeline = pipeline
        self._known, self._idle = known, idle
        self.values: dict[str, Any] = {}
        self.surveys: dict[str, Survey | UnkeyableError] = {}
        self.modules: dict[int, tuple[str, nn.Module, Survey | UnkeyableError | None]] = {}

    def add(self, name: str, value: Any) -> None:
        """Note the value of ``name``, if it is the first."""
        if name in self.values:
            return
        self.values[name] = value
        if isinstance(value, nn.Module):
            self.add_module(name, value)
        elif not (value is ABSENT or is_plain(value) or _is_method(self.pipeline, name, value)):
            self.surveys[name] = survey = self._survey(value, name)
            self._add_modules(survey)

    def add_module(self, path: str, module: nn.Module, *, runs: bool = False) -> None:
        """Note a module, and those that it keeps outside of its layers."""
        if id(module) in self.modules and not (runs and self.modules[id(module)][2] is None):
            return
        survey = self._survey(module, path) if runs or path not in self._idle else None
        self.modules[id(module)] = path, module, survey
        if survey is not None:
            self._add_modules(survey)

    def _add_modules(self, survey: Survey | UnkeyableError) -> None:
        for path, module in () if isinstance(survey, UnkeyableError) else survey.modules:
            self.add_module(path, module)

    def _survey(self, value: Any, path: str) -> Survey | UnkeyableError:
        known = self._known.get(id(value))
        if known is not None and known.is_of(value) and known.holds():
            return known
        try:
            return Survey(value, path, self.pipeline, known)
        except UnkeyableError as error:  # matters only if it runs
            return error


def _is_method(pipeline: object, name: str, value: Any) -> bool:
    return isinstance(value, types.FunctionType) and name not in getattr(pipeline, "__dict__", {})


class Recording:
    """A context in which the reads of this thread are noted.

    Attributes:
        found: what was read, as it was at the first look. An attribute that the call itself set before is not read.
        left: attributes that the call set, with their last values.
        ran: ids of the modules that ran.
        strays: modules that ran and belong to nothing that was read.
        spoiled: counters of the call (see `counted_at`) that it also read for another reason.
    """

    def __init__(self, pipeline: object, known: Mapping[int, Survey], idle: frozenset[str]) -> None:
        self.pipeline, self.found = pipeline, Found(pipeline, known, idle)
        self.left: dict[str, Any] = {}
        self.ran: set[int] = set()
        self.strays: list[nn.Module] = []
        self.spoiled: set[str] = set()
        self._counters: set[str] = set()
        self._is_paused = False

    def __enter__(self) -> Recording:
        self.found.add("encode_prompt", look_up(self.pipeline, "encode_prompt"))
        _begin(type(self.pipeline))
        _here.recording = self
        return self

    def __exit__(self, *error: object) -> None:
        _here.recording = None
        _end(type(self.pipeline))
        for name in self._counters:
            self.left.pop(name, None)

    def read(self, name: str, get: Callable[[Any, str], Any], caller: types.FrameType) -> Any:
        """The value of an attribute, by ``get``, the class's own way."""
        pipeline = self.pipeline
        self._is_paused = True  # what a property reads is in its value
        try:
            try:
                value = get(pipeline, name)
            except AttributeError:
                fallback = getattr(type(pipeline), "__getattr__", None)
                if fallback is None:
                    self._note(name, ABSENT, caller)
                    raise
                try:
                    value = fallback(pipeline, name)
                except AttributeError:
                    self._note(name, ABSENT, caller)
                    raise
            if name == "__dict__":
                for each, held in dict(value).items():
                    self._note(each, held, caller)
            else:
                self._note(name, value, caller)
            return value
        finally:
            self._is_paused = False

    def _note(self, name: str, value: Any, caller: types.FrameType) -> None:
        if name in self.found.values or (name.startswith("__") and name.endswith("__")) or name == "encode_prompt":
            return
        if counted_at(caller.f_code).get(caller.f_lineno) == name and name not in self.left:
            self._counters.add(name)
        elif name in self._counters:
            self.spoiled.add(name)
        elif name not in self.left:
            is_own = type(value) is types.MethodType and value.__self__ is self.pipeline
            self.found.add(name, value.__func__ if is_own else value)

    def runs(self, module: nn.Module) -> None:
        """A module is about to run."""
        self.ran.add(id(module))
        if self._is_paused:
            return
        self._is_paused = True
        try:
            found = list(self.found.modules.values())
            for path, root, survey in sorted(found, key=lambda each: not isinstance(each[2], Survey)):
                if isinstance(survey, Survey):
                    if id(module) in survey.identities:
                        survey.weights()  # before it runs: afterwards it may be elsewhere
                        return
                elif any(part is module for part in root.modules()):
                    self.found.add_module(path, root, runs=True)
                    return
            self.strays.append(module)
            self.found.add_module(f"<{len(self.strays)}>", module)
        finally:
            self._is_paused = False


def _current(pipeline: object) -> Recording | None:
    recording: Recording | None = getattr(_here, "recording", None)
    return recording if recording is not None and recording.pipeline is pipeline and not recording._is_paused else None


def _begin(kind: type) -> None:
    """Let attribute access of ``kind`` be noted."""
    with _lock:
        count, own = _recorded.get(kind, (0, {}))
        if not count:
            own = {name: vars(kind)[name] for name in _ACCESS if name in vars(kind)}
            for name, access in _accesses(kind).items():
                setattr(kind, name, access)
        _recorded[kind] = count + 1, own
        if not _handles:
            patterns = [getattr(each[1], "pattern", None) for each in warnings.filters]
            if "torch._dynamo" in sys.modules and _HOOKS_WARNING not in patterns:
                warnings.filterwarnings("ignore", _HOOKS_WARNING)
            _handles.append(register_module_forward_pre_hook(_note_run))


def _end(kind: type) -> None:
    with _lock:
        count, own = _recorded[kind]
        if count > 1:
            _recorded[kind] = count - 1, own
        else:
            del _recorded[kind]
            for name in _ACCESS:
                if name in own:
                    setattr(kind, name, own[name])
                else:
                    delattr(kind, name)
        if not _recorded:
            _handles.pop().remove()


def _accesses(kind: type) -> dict[str, Any]:
    get, put, drop = (getattr(kind, name) for name in _ACCESS)

    def __getattribute__(self: Any, name: str) -> Any:
        recording = _current(self)
        return get(self, name) if recording is None else recording.read(name, get, sys._getframe(1))

    def __setattr__(self: Any, name: str, value: Any) -> None:
        recording = _current(self)
        if recording is not None:
            recording.left[name] = value
        put(self, name, value)

    def __delattr__(self: Any, name: str) -> None:
        recording = _current(self)
        if recording is not None:
            recording.left[name] = ABSENT
        drop(self, name)

    return dict(zip(_ACCESS, (__getattribute__, __setattr__, __delattr__), strict=True))


def _note_run(module: nn.Module, _inputs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    recording: Recording | None = getattr(_here, "recording", None)
    if recording is not None and id(module) not in recording.ran:
        recording.runs(module)
