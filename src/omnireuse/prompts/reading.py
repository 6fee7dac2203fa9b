"""What encoding reads, remembered: compared before each hit with what it is now."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from omnireuse.prompts.code import Code
from omnireuse.prompts.keys import UnkeyableError, digest_of, is_plain
from omnireuse.prompts.recording import ABSENT, Found, look_up, our_hooks
from omnireuse.prompts.survey import Survey, serial

__all__ = ["Reading", "Sight", "State"]


class State(NamedTuple):
    """What was read, in two digests: equal states give equal embeddings.

    Args:
        weights: of the content of all tensors.
        settings: of all else.
    """

    weights: bytes
    settings: bytes


class _Idle:
    """A module that was looked up and did not run: its identity, dtype and configuration count, its weights do not."""

    def __init__(self, module: nn.Module, path: str, pipeline: object) -> None:
        self._module, self._about = weakref.ref(module), _about(module)
        config = vars(module).get("config", vars(module).get("_internal_dict"))
        self.config = None if config is None or is_plain(config) else Survey(config, f"{path}.config", pipeline)

    def holds(self) -> bool:
        module = self._module()
        return module is not None and _about(module) == self._about and (self.config is None or self.config.holds())

    def digests(self) -> tuple[str, str | None]:
        """Here and elsewhere."""
        here, there = (b"", b"") if self.config is None else (self.config.here, self.config.there)
        about = " ".join(map(repr, self._about[1:]))
        return f"{self._about[0]} {about} {here!r}", None if there is None else f"{about} {there!r}"


def _about(module: nn.Module) -> tuple[Any, ...]:
    dtype = next((weight.dtype for weight in module.parameters() if weight.is_floating_point()), None)
    plain = [(k, v) for k, v in vars(module).items() if is_plain(v) and not k.startswith("_") and k != "training"]
    return serial(module), type(module).__qualname__, dtype, *plain


class Sight:
    """What the names of a reading hold at one moment.

    Args:
        found: the values.
        whole: whether a module that was found counts with all that it is.

    Attributes:
        state: what it is.
        elsewhere: digest that another process has for the same; None where there cannot be one.
        whole: paths of the modules that count whole; ``idle``: of the others.

    Raises:
        UnkeyableError: something can change unseen.
    """

    def __init__(self, found: Found, whole: Callable[[str, nn.Module, Any], bool]) -> None:
        methods = [name for name, value in found.values.items() if isinstance(value, types.FunctionType)]
        self._code, self._hooks = Code(found.pipeline, ["encode_prompt", *methods]), _process_hooks()
        self._plain = {name: value for name, value in found.values.items() if not isinstance(value, nn.Module)}
        self._roots = {name: weakref.ref(v) for name, v in found.values.items() if isinstance(v, nn.Module)}
        self.surveys: dict[int, Survey] = {}
        self._idle: list[_Idle] = []
        texts: list[tuple[str, str | None]] = [(repr(self._code.here), repr(self._code.there)), (repr(self._hooks),) * 2]
        weights: list[bytes] = []
        paths: dict[bool, list[str]] = {True: [], False: []}
        for name, value in found.values.items():
            survey = found.surveys.get(name)
            if survey is not None:
                survey = _checked(survey)
                self.surveys[id(value)] = survey
                texts.append((f"{name} {survey.here!r}", survey.there and f"{name} {survey.there!r}"))
                weights.append(survey.weights())
            else:
                text = f"{type(value).__name__} {value!r}" if is_plain(value) or value is ABSENT else "code or module"
                texts.append((f"{name} {text}",) * 2)
        for path, module, survey in found.modules.values():
            is_whole = whole(path, module, survey)
            paths[is_whole].append(path)
            if is_whole:
                survey = _checked(survey) if survey is not None else Survey(module, path, found.pipeline)
                self.surveys[id(module)] = survey
                texts.append((f"{path} {survey.here!r}", survey.there and f"{path} {survey.there!r}"))
                weights.append(survey.weights())
            else:
                self._idle.append(idle := _Idle(module, path, found.pipeline))
                here, there = idle.digests()
                texts.append((f"{path} {here}", there and f"{path} {there}"))
        self._texts = texts
        self.whole, self.idle = frozenset(paths[True]), frozenset(paths[False])
        here = digest_of("\n".join([here for here, _ in texts]).encode())
        self.state = State(digest_of(*weights), here)
        is_portable = all(there is not None for _, there in texts) and not any(p.startswith("<") for p in self.whole)
        elsewhere = "\n".join([str(there) for _, there in texts]).encode()
        self.elsewhere = digest_of(elsewhere, *weights).hex() if is_portable else None

    def holds(self, pipeline: object) -> bool:
        """Whether all is as it was."""
        for name, value in self._plain.items():
            now = look_up(pipeline, name)
            if now is not value and (type(now) is not type(value) or not is_plain(value) or now != value):
                return False
        return (
            all([getattr(pipeline, name, None) is root() for name, root in self._roots.items()])  # noqa: C419
            and self._code.holds()
            and all([survey.holds() for survey in self.surveys.values()])  # noqa: C419
            and all([idle.holds() for idle in self._idle])  # noqa: C419
            and _process_hooks() == self._hooks
        )

    def unlike(self, other: Sight) -> list[str]:
        """What differs, in words."""
        return sorted({text.split(" ")[0] for text, _ in {*self._texts} ^ {*other._texts}}) or ["weights"]

    def device(self) -> torch.device | None:
        """Where the first weight is now; None without weights."""
        return next((s.tensors[0].device for s in self.surveys.values() if s.tensors), None)

    def is_training(self) -> bool:
        """Whether a part of an encoder is in training mode."""
        return any(survey.is_training() for survey in self.surveys.values())

    def release(self) -> None:
        """Let go of everything."""
        for survey in self.surveys.values():
            survey.release()


def _checked(survey: Survey | UnkeyableError) -> Survey:
    if isinstance(survey, UnkeyableError):
        raise survey
    return survey


def _process_hooks() -> tuple[int, ...]:
    """Forward hooks of all modules of the process, but for the recordings' own."""
    hooks = [*torch_module._global_forward_pre_hooks, *torch_module._global_forward_hooks]
    return tuple(hooks) if not hooks else tuple(sorted({*hooks} - our_hooks()))


class Reading:
    """Names that a call read, the modules that it used, and what they held last.

    Args:
        names: attributes of the pipeline, in the order of the first look.
        whole: paths of the modules that ran, wholly or in part.
        strays: modules that ran and that no attribute leads to.
        on_change: called with the digest of weights that are gone for good.
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
        """What is read now. Cost: see `Survey.holds`; where something changed, that of a survey.

        Raises:
            UnkeyableError: something can change unseen.
        """
        sight = self.sight
        return (self.look(pipeline) if sight is None or not sight.holds(pipeline) else sight).state

    def look(self, pipeline: object, known: Mapping[int, Survey] | None = None) -> Sight:
        """Look at everything.

        Args:
            known: surveys that may still hold; None: those of the last look.
        """
        with self._lock:
            old, self.sight = self.sight, None
            found = Found(pipeline, known or ({} if old is None else old.surveys))
            for name in self.names:
                found.add(name, look_up(pipeline, name))
            for number, stray in enumerate(self._strays, 1):
                if (module := stray()) is not None:
                    found.add_module(f"<{number}>", module)
            self.sight = new = Sight(found, lambda path, *_: path in self.whole)
        if old is not None and new.state.weights != old.state.weights:
            self._on_change(old.state.weights)
        return new

    def suspect(self, tensors: set[int]) -> None:
        """These tensors, by id, may have changed without a new version."""
        for survey in () if self.sight is None else self.sight.surveys.values():
            survey.suspect(tensors)

