"""What a call of `encode_prompt` read, and what all of that holds at one moment."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
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


class Reading(NamedTuple):
    """What a call read.

    Args:
        names: attributes of the pipeline, in the order of the first look.
        whole: paths of the modules that ran, wholly or in part: they count with all that they are.
        strays: modules that ran and that no attribute leads to.
    """

    names: tuple[str, ...]
    whole: frozenset[str]
    strays: tuple[weakref.ref[nn.Module], ...] = ()


def look_up(pipeline: object, name: str) -> Any:
    """The value of an attribute; for a method of the pipeline its function; `ABSENT` if there is none."""
    value = getattr(pipeline, name, ABSENT)
    if name == "encode_prompt":
        return getattr(value, "original", value)
    return value.__func__ if type(value) is types.MethodType and value.__self__ is pipeline else value


class Sight:
    """What attributes of a pipeline hold at one moment. Filled by `add` and `use`, then closed by `finish`.

    Args:
        known: surveys that may still hold, by the id of the value.
        may_run: whether a module of a path may run. It is surveyed when it is found, because the call itself may
            change it; any other only if it runs.

    Attributes:
        modules: those that were found: path, module and survey, by id.
        reading: what was added and used.
        idle: paths of the modules that were not used.
        state: what all of it is.
        elsewhere: digest that another process has for the same; None if there cannot be one.
    """

    def __init__(
        self, pipeline: object, known: Mapping[int, Survey], may_run: Callable[[str], bool] = lambda path: True
    ) -> None:
        self.pipeline: Any = pipeline
        self._known, self._may_run = known, may_run
        self._values: dict[str, Any] = {}
        self._parts: dict[str, Survey | UnkeyableError] = {}
        self.modules: dict[int, tuple[str, nn.Module, Survey | UnkeyableError | None]] = {}
        self._strays: list[weakref.ref[nn.Module]] = []
        self._used: set[int] = set()

    @classmethod
    @checked()
    def of(cls, pipeline: object, reading: Reading, known: Mapping[int, Survey]) -> Sight:
        """Look at what a call read.

        Raises:
            UnkeyableError: something can change unseen.
        """
        sight = cls(pipeline, known, reading.whole.__contains__)
        for name in reading.names:
            sight.add(name, look_up(pipeline, name))
        for stray in reading.strays:
            if (module := stray()) is not None:
                sight._add_stray(module)
        sight._used = {number for number, (_, _, survey) in sight.modules.items() if survey is not None}
        sight.finish().reading = reading
        return sight

    def add(self, name: str, value: Any) -> None:
        """Note the value of an attribute, if it is the first."""
        if name in self._values:
            return
        self._values[name] = value
        if isinstance(value, nn.Module):
            self._add_module(name, value)
        elif not (value is ABSENT or is_plain(value) or self._is_method(name, value)):
            self._parts[name] = _weighed(self._survey(value, name))

    def use(self, module: nn.Module) -> frozenset[int]:
        """Survey what a module that is about to run belongs to; the ids of all modules in there."""
        root, survey = next((each[1:] for each in self.modules.values() if _is_in(module, *each[1:])), (module, None))
        if id(root) not in self.modules:
            survey = self._add_stray(root)
        self._used.add(id(root))
        survey = _weighed(survey or self._look_into(root))
        return survey.identities if isinstance(survey, Survey) else frozenset(map(id, root.modules()))

    @checked()
    def finish(self) -> Sight:
        """Let go of what was found, but for what the surveys hold.

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
        whole: list[str] = []
        # A recording finds modules in the order of their use, a later look does not.
        for path, module, survey in sorted(self.modules.values(), key=lambda each: each[0]):
            if survey is not None and id(module) in self._used:
                whole.append(path)
                texts.append(self._take(path, module, survey))
            else:
                texts.append(self._take(path, module, Survey(module, path, self.pipeline, is_idle=True)))
        self.reading = Reading((*self._values,), frozenset(whole), (*self._strays,))
        weights = [survey.weights() for survey in self.surveys.values()]
        self.state = State(digest_of(*weights), digest_of(repr([text[:2] for text in texts]).encode()))
        portable = repr([(name, there) for name, _, there in texts]).encode()
        is_portable = not self._strays and all(text[2] is not None for text in texts)
        self.elsewhere = digest_of(portable, *weights).hex() if is_portable else None
        self.idle = frozenset(path for path, _, _ in self.modules.values()) - self.reading.whole
        self._texts = {name: here for name, here, _ in texts}
        self._roots = {name: weakref.ref(v) for name, v in self._values.items() if isinstance(v, nn.Module)}
        self._values = {name: None if name in self._roots else value for name, value in self._values.items()}
        self.pipeline, self._known, self.modules = None, {}, {}
        return self

    def holds(self, pipeline: object) -> bool:
        """Whether all is as it was. Cost: see `Survey.holds`."""
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

    def _add_module(self, path: str, module: nn.Module) -> None:
        if id(module) not in self.modules:
            self.modules[id(module)] = path, module, None
            if any(vars(part).get("_compiled_call_impl") for part in module.modules()):  # does not tell that it runs
                self._used.add(id(module))
                _weighed(self._look_into(module))
            elif self._may_run(path):
                self._look_into(module)

    def _add_stray(self, module: nn.Module) -> Survey | UnkeyableError:
        self._strays.append(weakref.ref(module))
        hash(self._strays[-1])  # is kept, and cannot be found once the module is gone
        self.modules[id(module)] = f"<{len(self._strays)}>", module, None
        return self._look_into(module)

    def _look_into(self, module: nn.Module) -> Survey | UnkeyableError:
        path = self.modules[id(module)][0]
        survey = self._survey(module, path)
        self.modules[id(module)] = path, module, survey
        return survey

    def _is_method(self, name: str, value: Any) -> bool:
        return isinstance(value, types.FunctionType) and name not in getattr(self.pipeline, "__dict__", {})

    def _survey(self, value: Any, path: str) -> Survey | UnkeyableError:
        known = self._known.get(id(value))
        if known is not None and not (known.is_of(value) and known.is_whole):
            known = None
        try:
            with checked():
                survey = known if known is not None and known.holds() else Survey(value, path, self.pipeline, known)
        except UnkeyableError as error:  # raised by `finish`: the call itself goes on
            return error
        for inner, module in survey.modules:
            self._add_module(inner, module)
        return survey

    def _take(self, name: str, value: Any, survey: Survey | UnkeyableError) -> tuple[str, Any, Any]:
        if isinstance(survey, UnkeyableError):
            raise survey
        self.surveys[id(value)] = survey
        return name, survey.here, survey.there


def _is_in(module: nn.Module, root: nn.Module, survey: Survey | UnkeyableError | None) -> bool:
    if isinstance(survey, Survey):
        return id(module) in survey.identities
    return any(part is module for part in root.modules())


def _weighed(survey: Survey | UnkeyableError) -> Survey | UnkeyableError:
    """Digest the weights before the call uses them: afterwards they may be others, or on another device."""
    if isinstance(survey, Survey):
        with contextlib.suppress(UnkeyableError), checked():  # raised by `Sight.finish`
            survey.weights()
    return survey


def _process_hooks() -> tuple[int, ...]:
    """Forward hooks of all modules of the process, but for that of recordings."""
    hooks = {**torch_module._global_forward_pre_hooks, **torch_module._global_forward_hooks}
    return tuple(number for number, hook in hooks.items() if getattr(hook, "__name__", "") != "note_run")
