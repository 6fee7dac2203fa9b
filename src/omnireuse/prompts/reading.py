"""What calls of `encode_prompt` read, and what it holds: remembered with an entry, and compared before each hit."""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from omnireuse.prompts.code import Code
from omnireuse.prompts.keys import UnkeyableError, digest_of, is_plain
from omnireuse.prompts.survey import Survey

__all__ = ["ABSENT", "Reading", "Sight", "State", "checked", "look_up"]

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """A look at things of unknown kinds: whatever goes wrong there says that they cannot be checked."""
    try:
        yield
    except UnkeyableError:
        raise
    except Exception as error:
        raise UnkeyableError("unchecked", f"{type(error).__name__}: {error}") from error


class State(NamedTuple):
    """What was read, in two digests: equal states give equal embeddings.

    Args:
        weights: of the content of all tensors.
        settings: of all else.
    """

    weights: bytes
    settings: bytes


def look_up(pipeline: object, name: str) -> Any:
    """The value of an attribute; for a method of the pipeline its function; `ABSENT` if there is none."""
    value = getattr(pipeline, name, ABSENT)
    if name == "encode_prompt":
        return getattr(value, "original", value)
    return value.__func__ if type(value) is types.MethodType and value.__self__ is pipeline else value


class Sight:
    """What attributes of a pipeline hold at one moment. Filled by `add`, then closed by `finish`.

    Args:
        known: surveys that may still hold, by the id of the value.
        idle: paths of modules that are known not to run: their survey waits until one does.

    Attributes:
        modules: those that were found: path, module and survey, by id.
        state: what all of it is.
        elsewhere: digest that another process has for the same; None if there cannot be one.
        whole, idle: paths of the modules that count with all that they are, and of the others.
    """

    def __init__(
        self, pipeline: object, known: Mapping[int, Survey] | None = None, idle: frozenset[str] = frozenset()
    ) -> None:
        self.pipeline: Any = pipeline
        self._known, self.idle, self.whole = known or {}, idle, frozenset[str]()
        self._values: dict[str, Any] = {}
        self._parts: dict[str, Survey | UnkeyableError] = {}
        self.modules: dict[int, tuple[str, nn.Module, Survey | UnkeyableError | None]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What was added, in order."""
        return (*self._values,)

    def add(self, name: str, value: Any) -> None:
        """Note the value of an attribute, if it is the first."""
        if name in self._values:
            return
        self._values[name] = value
        if isinstance(value, nn.Module):
            self.add_module(name, value)
        elif not (value is ABSENT or is_plain(value) or self._is_method(name, value)):
            self._parts[name] = self._survey(value, name)

    def add_module(self, path: str, module: nn.Module, *, runs: bool = False) -> None:
        """Note a module, and those that it keeps outside of its layers."""
        known = self.modules.get(id(module))
        if known is None or (runs and known[2] is None):
            self.modules[id(module)] = path, module, None
            if runs or path not in self.idle:
                self.modules[id(module)] = path, module, self._survey(module, path)

    @checked()
    def finish(self, is_whole: Callable[[str, nn.Module, Any], bool]) -> Sight:
        """Tell which modules count whole; what was found is let go of, but for what the surveys hold.

        Raises:
            UnkeyableError: something can change unseen.
        """
        methods = [name for name, value in self._values.items() if isinstance(value, types.FunctionType)]
        self.code, self._hooks = Code(self.pipeline, ["encode_prompt", *methods]), _process_hooks()
        texts: list[tuple[str, Any, Any]] = [("code", self.code.here, self.code.there)]
        texts.append(("hooks of all modules", self._hooks, self._hooks))
        self.surveys: dict[int, Survey] = {}
        for name, value in self._values.items():
            if name in self._parts:
                texts.append(self._take(name, value, self._parts[name]))
            else:
                text = f"{type(value).__name__} {value!r}" if is_plain(value) or value is ABSENT else "module or method"
                texts.append((name, text, text))
        paths: dict[bool, list[str]] = {True: [], False: []}
        for path, module, survey in [*self.modules.values()]:
            whole = is_whole(path, module, survey)
            paths[whole].append(path)
            if not whole or survey is None:
                survey = Survey(module, path, self.pipeline, is_idle=not whole)
            texts.append(self._take(path, module, survey))
        self.whole, self.idle = frozenset(paths[True]), frozenset(paths[False])
        weights = [survey.weights() for survey in self.surveys.values()]
        self.state = State(digest_of(*weights), digest_of(repr([text[:2] for text in texts]).encode()))
        is_portable = all(text[2] is not None for text in texts) and not any(
            path.startswith("<") for path in self.whole
        )
        portable = repr([(name, there) for name, _, there in texts]).encode()
        self.elsewhere = digest_of(portable, *weights).hex() if is_portable else None
        self._texts = {name: here for name, here, _ in texts}
        self._roots = {name: weakref.ref(v) for name, v in self._values.items() if isinstance(v, nn.Module)}
        self._values = {name: None if name in self._roots else value for name, value in self._values.items()}
        self.pipeline, self._known, self.modules = None, {}, {}
        return self

    def holds(self, pipeline: object) -> bool:
        """Whether all is as it was."""
        for name, value in self._values.items():
            try:
                now = look_up(pipeline, name)
            except Exception:  # of a property: the pipeline raises its own error
                return False
            root = self._roots.get(name)
            is_same = now is (value if root is None else root())
            if not is_same and (root is not None or not is_plain(now) or type(now) is not type(value) or now != value):
                return False
        for survey in self.surveys.values():
            if not survey.holds():
                return False
        return self.code.holds() and _process_hooks() == self._hooks

    def unlike(self, other: Sight) -> list[str]:
        """What differs, by name."""
        return [name for name, text in self._texts.items() if other._texts.get(name) != text] or ["weights"]

    def device(self) -> torch.device | None:
        """Where the first weight is now; None without weights."""
        return next((survey.tensors[0].device for survey in self.surveys.values() if survey.tensors), None)

    def any_layer(self, name: str) -> bool:
        """Whether an attribute of any layer is true."""
        return any(survey.any_layer(name) for survey in self.surveys.values())

    def _is_method(self, name: str, value: Any) -> bool:
        return isinstance(value, types.FunctionType) and name not in getattr(self.pipeline, "__dict__", {})

    def _survey(self, value: Any, path: str) -> Survey | UnkeyableError:
        known = self._known.get(id(value))
        if known is not None and not (known.is_of(value) and known.is_whole):
            known = None
        try:
            with checked():
                survey = known if known is not None and known.holds() else Survey(value, path, self.pipeline, known)
        except UnkeyableError as error:  # matters only if it runs
            return error
        for inner, module in survey.modules:
            self.add_module(inner, module)
        return survey

    def _take(self, name: str, value: Any, survey: Survey | UnkeyableError) -> tuple[str, Any, Any]:
        if isinstance(survey, UnkeyableError):
            raise survey
        self.surveys[id(value)] = survey
        return name, survey.here, survey.there


def _process_hooks() -> tuple[int, ...]:
    """Forward hooks of all modules of the process, but for that of recordings."""
    hooks = {**torch_module._global_forward_pre_hooks, **torch_module._global_forward_hooks}
    return tuple(number for number, hook in hooks.items() if getattr(hook, "__name__", "") != "note_run")


class Reading:
    """Attributes that a call read, the modules that it used, and what they held last.

    Args:
        names: the attributes, in the order of the first look.
        whole: paths of the modules that ran, wholly or in part.
        strays: modules that ran and that no attribute leads to.
        on_change: called with the digest of weights that are gone.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        whole: frozenset[str],
        strays: Sequence[nn.Module],
        on_change: Callable[[bytes], None],
    ) -> None:
        self.names, self.whole = names, whole
        self._strays = [weakref.ref(module) for module in strays]
        self._on_change, self._lock = on_change, threading.Lock()
        self.sight: Sight | None = None

    def state(self, pipeline: object) -> State:
        """What is read now. Cost: see `Survey.holds`; if something changed, that of a survey.

        Raises:
            UnkeyableError: something can change unseen.
        """
        sight = self.sight
        return (self.look(pipeline) if sight is None or not sight.holds(pipeline) else sight).state

    @checked()
    def look(self, pipeline: object, known: Mapping[int, Survey] | None = None) -> Sight:
        """Look at everything.

        Args:
            known: surveys that may still hold; None: those of the last look.
        """
        with self._lock:
            old, self.sight = self.sight, None
            sight = Sight(pipeline, known or ({} if old is None else old.surveys))
            for name in self.names:
                sight.add(name, look_up(pipeline, name))
            for number, stray in enumerate(self._strays, 1):
                if (module := stray()) is not None:
                    sight.add_module(f"<{number}>", module)
            self.sight = sight.finish(lambda path, *_: path in self.whole)
        if old is not None and sight.state.weights != old.state.weights:
            self._on_change(old.state.weights)
        return sight
