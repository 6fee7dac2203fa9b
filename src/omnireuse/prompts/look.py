"""What a pipeline holds under the names that its code mentions, at one moment.

The look is made once, as a list of places, and compared in microseconds afterwards. It is too wide on purpose: too much
makes a miss, too little a stale embedding.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from omnireuse.fingerprints.plain import is_plain
from omnireuse.fingerprints.survey import CONTAINERS, Survey, checked, plain_word, slots_of
from omnireuse.fingerprints.tensors import reference
from omnireuse.prompts.code import Code, is_library

__all__ = ["ABSENT", "IDLE", "Look"]

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
IDLE = " (not run)"
"""The end of the path of what counts of a module only if it does not run."""

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_CONFIGS = ("config", "_internal_dict")
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}


class Look(Survey):
    """Values under mentioned names of a pipeline, and of each object and module that is held under one.

    Plain values and containers count by content. So do objects of classes whose code is read; others count by
    identity, and modules that do not run by identity, dtype, device and configuration. Tokenizers count whole.

    Args:
        code: what is mentioned; extended by what the classes and functions of the values mention.
        old: the look before.

    Attributes:
        modules: those that are held, by path.
        whole: what counts whole, by path.
        owners: of each attribute how to find its object, and its name, by path.
        unseen: paths of modules that may run without a word of torch's hooks.

    Raises:
        UnkeyableError: something can change unseen.
    """

    def __init__(self, pipeline: object, code: Code, old: Look | None) -> None:
        self._code: Any = code
        with checked():
            number = -1
            while number != len(code.names):  # what is seen may mention more
                number = len(code.names)
                self._look(pipeline, old)
                code.settle()
            self._end(None)
        if old is not None:
            self._keep_sums(old)
        self._code = None

    def _look(self, pipeline: object, old: Look | None) -> None:
        self._begin("", pipeline, old)
        self.modules: dict[str, weakref.ref[nn.Module]] = {}
        self.whole: dict[str, Any] = {}
        self.owners: dict[str, tuple[Callable[[], Any], str]] = {}
        self.unseen: set[str] = set()
        self._slots: list[tuple[Any, str]] = []
        self._ids: list[int] = []
        self._pinned: list[Any] = []  # so that no other has its id meanwhile; modules by weak reference
        self._seen[id(pipeline)] = 0, pipeline
        self._pending: list[tuple[str, Any]] = [("", pipeline)]
        self._follow()
        for path, space, name, owner in [*self._code.places.values()]:
            self._slot(path, space, name, owner)
            self._follow()
        if self._code.is_blind:
            self.unseen |= self.modules.keys()
        self._open("hooks of all modules")
        self._probe(_process_hooks, None)

    def holds(self) -> bool:
        """Whether all is as it was."""
        return [id(space.get(name, ABSENT)) for space, name in self._slots] == self._ids and super().holds()

    def module(self, path: str) -> nn.Module | None:
        """The module that is held there."""
        held = self.modules.get(path)
        return None if held is None else held()

    def root_of(self, module: nn.Module) -> tuple[str, nn.Module] | None:
        """The outermost module that is held and that ``module`` is or is in, with its path."""
        roots = [(path, root) for path, held in self.modules.items() if (root := held()) is not None]
        for path, root in roots:
            if module is root or any(part is module for part in root.modules()):
                return path, root
        return None

    def owner(self, path: str) -> tuple[Any, str]:
        """The object that has an attribute, and its name; None for the object if it is gone."""
        find, name = self.owners[path]
        return find(), name

    def release(self) -> None:
        """Keep nothing alive any more."""
        super().release()
        self._slots.clear()
        self._pinned.clear()

    def _follow(self) -> None:
        while self._pending:
            self._attributes(*self._pending.pop(0))

    def _attributes(self, path: str, owner: object) -> None:
        code, is_module = self._code, isinstance(owner, nn.Module)
        held = getattr(owner, "__dict__", None)
        spaces = [held] if isinstance(held, dict) else []
        if is_module:
            spaces += [owner.__dict__[name] for name in _REGISTRIES]
        self.watch.tables += spaces
        for space in spaces:
            takes_all = code.facts.makes_names and (not is_module or path == "")
            names = {name for name in space if isinstance(name, str)} if takes_all else space.keys() & code.names
            names = names - _OF_TORCH if is_module else names
            if is_module and path:
                names |= space.keys() & set(_CONFIGS)
            for name in sorted(names - {"encode_prompt"} if path == "" else names):
                if not name.startswith("__"):
                    inside = f"{path}.{name}" if path else name
                    self._slot(inside, space, name, owner, is_whole=is_module and name in _CONFIGS)
        for name in sorted(slots_of(owner).keys() & code.names):
            self._slot(f"{path}.{name}" if path else name, _Attributes(owner), name, owner)

    def _slot(self, path: str, space: Any, name: str, owner: Any, *, is_whole: bool = False) -> None:
        value = space.get(name, ABSENT)
        self._slots.append((space, name))
        self._ids.append(id(value))
        self._pinned.append(weakref.ref(value) if isinstance(value, nn.Module) else value)
        self.owners[path] = reference(owner), name
        self._open(path, value)
        if value is ABSENT:
            self._words.append("absent")
        elif is_whole and not is_plain(value):
            self._whole(value, path)
        else:
            self._value(value, path)

    def _other_module(self, module: nn.Module, path: str) -> None:
        outer = self._path
        self._words.append("module")
        self.modules[path] = self._weakly(module)
        parts = list(module.modules())
        for kind in {type(part): None for part in parts}:
            self._code.read_class(kind)
        if any(vars(part).get("_compiled_call_impl") for part in parts):  # does not tell that it runs
            self.unseen.add(path)
        first = next(_floating(parts), None)
        self._open(f"{path}{IDLE}")
        self._own(module, type(module).__qualname__)
        if first is not None:
            self._probe(_place, first)
        self._open(outer)
        self._pending.append((path, module))

    def _object(self, value: object, path: str) -> None:
        if isinstance(value, type):
            self._code.read_class(value)
        if _counts_whole(type(value)):
            self._whole(value, path)
        else:
            super()._object(value, path)

    def _function(self, function: types.FunctionType, path: str) -> None:
        self._code.read(function)
        super()._function(function, path)

    def _parts(self, value: object, path: str) -> None:
        kind = type(value)
        if isinstance(value, CONTAINERS):
            self._own(kind)
            self._container(value, path)
        else:
            self._code.read_class(kind)
            self._code.read(value)
            if is_library(kind.__module__) and kind is not types.SimpleNamespace:
                self._words.append((self._number(value), f"{kind.__qualname__} {_plain_attributes(value)}"))
            else:
                self._own(kind)
            if isinstance(value, (str, bytes, int, float, complex)):
                self._words.append(plain_word(value))
        if kind.__module__ != "builtins":
            self._pending.append((path, value))

    def _whole(self, value: object, path: str) -> None:
        self.whole[path] = value
        self._words.append("whole")


class _Attributes:
    """An object's slots, read like a dict."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def get(self, name: str, default: object = None) -> Any:
        """The value of a slot."""
        return getattr(self._thing, name, default)


def _floating(modules: list[nn.Module]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Where floating-point weights are."""
    for registry in _REGISTRIES[:2]:
        for module in modules:
            for name, tensor in vars(module)[registry].items():
                if tensor is not None and tensor.is_floating_point():
                    yield vars(module)[registry], name


def _place(where: tuple[Mapping[str, Any], str]) -> tuple[torch.dtype, torch.device]:
    weight = where[0][where[1]]
    return weight.dtype, weight.device


def _counts_whole(kind: type) -> bool:
    """Whether objects of a class are tokenizers, or processors of transformers."""
    if issubclass(kind, (nn.Module, dict, type, types.FunctionType)):
        return False
    is_callable = any("__call__" in vars(base) for base in kind.__mro__)
    is_theirs = kind.__module__.startswith(("tokenizers", "transformers."))
    return callable(getattr(kind, "batch_decode", None)) or (is_theirs and is_callable)


def _plain_attributes(value: object) -> str:
    return repr(sorted([(k, v) for k, v in getattr(value, "__dict__", {}).items() if is_plain(v)], key=str))


def _process_hooks(_: None) -> tuple[int, ...]:
    """Forward hooks of all modules of the process, but for that of encodes."""
    hooks = {**torch_module._global_forward_pre_hooks, **torch_module._global_forward_hooks}
    return tuple([number for number, hook in hooks.items() if getattr(hook, "__name__", "") != "note_run"])
