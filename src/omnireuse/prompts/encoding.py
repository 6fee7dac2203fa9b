"""One call of `encode_prompt` while it goes on: the modules that run in it, and what they were before."""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from omnireuse.fingerprints.plain import UnkeyableError, is_plain
from omnireuse.fingerprints.survey import CONTAINERS
from omnireuse.prompts.entry import Left
from omnireuse.prompts.view import Scope, View, Write, held_by

if TYPE_CHECKING:
    from omnireuse.prompts.call import EncodeCall

__all__ = ["Encoding", "is_encoding"]

_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"  # ours changes nothing


class _Here(threading.local):
    encoding: Encoding | None = None


_here = _Here()
_lock = threading.Lock()
_going_on: set[Encoding] = set()
_handles: list[Any] = []
_is_compiling = [False]


def is_encoding() -> bool:
    """Whether this thread is inside of a call whose modules are noted."""
    return _here.encoding is not None


class Encoding:
    """A context in which the modules that this thread runs are noted, by torch's forward pre-hook of all modules.

    Attributes:
        before: what was there when each began.
        others: paths of what moved meanwhile, and not by the call itself.
        noted: ids of the modules that are known to run, with their layers.
        is_deaf: something was compiled meanwhile, in whatever thread: modules may have run without a word.

    Raises:
        UnkeyableError: the pipeline holds something that can change unseen.
    """

    def __init__(self, call: EncodeCall) -> None:
        self._call = call
        self.before = call.views.view(Scope())
        self.before.look.sums()
        self.others: list[str] = []
        self.is_deaf = False
        self._after: View | None = None
        self._own: list[str] = []
        self._anew: list[str] = []
        self._error: UnkeyableError | None = None
        self.noted: set[int] = set()
        self._is_paused = False
        for path in sorted(self.before.look.unseen):
            if (module := self.before.look.modules[path]()) is not None:
                self._note(path, module)

    def __enter__(self) -> Encoding:
        with _lock:
            _going_on.add(self)
            _listen()
            self.is_deaf = _is_compiling[0]
        self._ticket = self._call.writes.begin()
        _here.encoding = self
        return self

    def __exit__(self, *error: object) -> None:
        _here.encoding = None
        with _lock:
            _going_on.discard(self)
            if not _going_on:
                _unlisten()
        inputs: list[str] = []
        try:
            self._after = self._call.views.view(self.scope)
            inputs = self._compare(self._after, self._call.writes.is_alone(self._ticket))
        except UnkeyableError as unkeyable:
            self._error = unkeyable
        finally:
            self._call.writes.end(inputs, self.before.ran)

    @property
    def scope(self) -> Scope:
        """What counts for such a call."""
        return Scope(frozenset(self.before.ran), tuple(sorted(self._own)))

    def found(self) -> tuple[Scope, View, Left]:
        """What counts for such a call, what that is now, and what the call stored anew.

        Raises:
            UnkeyableError: something can change unseen, was compiled meanwhile, or the call left what a hit cannot
                leave.
        """
        if self.is_deaf:
            raise UnkeyableError("compiled")
        if self._error is not None or self._after is None:
            raise self._error or UnkeyableError("unchecked")
        left = []
        for path in self._anew:
            value = held_by(*self._after.owner(path))
            if not _is_plain_throughout(value):
                raise UnkeyableError("left", path)
            left.append((path, copy.deepcopy(value)))
        return self.scope, self._after, left

    def _compare(self, after: View, is_alone: bool) -> list[str]:
        """Sort what moved, and note what the call leaves. Returns what it both reads and writes."""
        inputs = []
        for path in sorted(self.before.moved(after)):
            write = self.before.written(path, after, self._call.views.code)
            if write is Write.FOREIGN or (write is Write.ANEW and not is_alone):  # or that of a call beside it
                self.others.append(path)
                continue
            self._own.append(path)
            self._anew += [path] if write is Write.ANEW else []
            inputs += [path] if write is not Write.COUNT else []
        return inputs

    def runs(self, module: nn.Module) -> None:
        """A module is about to run."""
        if self._is_paused:
            return
        self._is_paused = True  # whatever runs while we look is no part of the call
        try:
            found = self.before.look.root_of(module)
            if found is not None:
                self._note(*found)
                return
            self.noted |= set(map(id, module.modules()))
            if not isinstance(getattr(module, "_orig_mod", module), torch.fx.GraphModule):  # made of code that is read
                self._error = UnkeyableError("stray", type(module).__qualname__)
        finally:
            self._is_paused = False

    def _note(self, path: str, root: nn.Module) -> None:
        try:
            survey = self.before.surveys[path] = self._call.views.survey(path, root)
            self.noted |= survey.identities
        except UnkeyableError as error:  # the call itself goes on
            self._error = error
            self.noted |= set(map(id, root.modules()))


def note_run(module: nn.Module, _inputs: Any) -> None:
    """The forward pre-hook of all modules of the process while some prompt is encoded."""
    if not torch.compiler.is_compiling():
        encoding = _here.encoding
        if encoding is not None and id(module) not in encoding.noted:
            encoding.runs(module)


def _listen() -> None:
    """Register the hook. While something is compiled there is none: else its code would depend on the hook, and be
    compiled again for each encoding."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    hook: Any = note_run
    if dynamo is not None:
        hook = dynamo.disable(note_run)
        # A filter of the process, because torch warns of every global hook. It stays: each change of the filters lets
        # all threads repeat the warnings that they have given.
        if not any(_WARNING in str(each[1]) for each in warnings.filters):
            warnings.filterwarnings("ignore", _WARNING)
        if _compilation_begins not in dynamo.callback.callback_handler.start_callbacks:  # first, or after a reset
            _is_compiling[0] = False
            dynamo.callback.on_compile_start(_compilation_begins)
            dynamo.callback.on_compile_end(_compilation_ends)
    if not _handles and not _is_compiling[0]:
        _handles.append(register_module_forward_pre_hook(hook))


def _unlisten() -> None:
    while _handles:
        _handles.pop().remove()


def _compilation_begins(*_: Any) -> None:
    with _lock:
        _is_compiling[0] = True
        _unlisten()
        for each in _going_on:
            each.is_deaf = True


def _compilation_ends(*_: Any) -> None:
    with _lock:
        _is_compiling[0] = False
        if _going_on:
            _listen()


def _is_plain_throughout(value: Any) -> bool:
    """Whether a value can be stored again: plain, or a container of such."""
    if isinstance(value, dict):
        return all(map(_is_plain_throughout, [*value, *value.values()]))
    return is_plain(value) or (isinstance(value, CONTAINERS) and all(map(_is_plain_throughout, value)))
