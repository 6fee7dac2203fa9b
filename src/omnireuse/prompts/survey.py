"""Everything reachable from one value that `encode_prompt` read: compared cheaply, and known by its content.

`gc.get_referents` lists what many objects refer to in one call: the class, attributes, hooks, layers and weights of
each layer of an encoder. As long as this list is the same, and every tensor has its version and address, nothing
changed. Else the value is surveyed anew, and its content decides.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import logging
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from omnireuse.prompts.checksum import tensor_checksum
from omnireuse.prompts.code import code_digest
from omnireuse.prompts.keys import UnkeyableError, digest_of, freeze, is_plain

__all__ = ["Survey", "suspect_stepped"]

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # those of the backward pass and of state_dict change no output
_OF_TORCH = frozenset(vars(nn.Module()))
_CAPTURES = "transformers.utils.output_capturing"  # its hooks note outputs and change none; the first call sets them
_CAPTURES_MARK = "_output_capturing_hooks_installed"
_CONTAINERS = (list, tuple, set, frozenset, collections.deque, dict)
_NAMED = (type, types.ModuleType, types.BuiltinFunctionType, logging.Logger)
_NO_INPUTS = frozenset(
    {
        "threading",
        "_thread",
        "queue",
        "_queue",
        "concurrent.futures.thread",
        "torch._subclasses.fake_tensor",  # a mode notes every tensor that it has made
        "omnireuse.prompts.wrapper",
    }
)
_GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator)  # a draw changes them, and nothing tells
_MEMORIES = frozenset({"cache", "deprecation_warnings"})  # of tokenizers: words that were split, what was said once
_MAX_VALUES = 50_000
_MAX_VOCABULARY = 1_000
_alive: weakref.WeakSet[Survey] = weakref.WeakSet()
_lock = threading.RLock()


class Survey:
    """One value and what it holds, at one moment. A module is surveyed whole; modules elsewhere in the value are named.

    Args:
        value: not plain (see `is_plain`).
        path: how it was found, for messages and stores outside the process.
        pipeline: left out, because reads of it are recorded.
        old: a survey whose checksums may still be right.
        is_idle: of a module, only its identity, dtype and configuration: it was looked up and did not run.

    Attributes:
        here: digest of all but the weights; identity counts if content cannot be known.
        there: the same for other processes; None if identity decides.
        modules: further modules, with their paths.
        identities: ids of the modules that are surveyed.
        is_whole: False for an idle module.
        tensors: all of them.
        suspects: ids of tensors that may have another content at the same version and address.

    Raises:
        UnkeyableError: something can change unseen.
    """

    def __init__(
        self, value: Any, path: str, pipeline: object, old: Survey | None = None, *, is_idle: bool = False
    ) -> None:
        self._pipeline, self._is_tokenizer = pipeline, False
        self._words: list[Any] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        self._layers: list[Any] = []  # with their attributes, layers, weights and hooks, if any
        self._empty: list[Any] = []
        self._objects: list[Any] = []  # everything else; types and keys count as well
        self._tables: list[Any] = []
        self._wrappers: list[torch.Tensor] = []
        self._probes: list[tuple[Any, Any]] = []
        self._classes: dict[type, None] = {}
        self.tensors: list[torch.Tensor] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.identities: frozenset[int] = frozenset()
        self.suspects: set[int] = set()
        self._held, self.is_whole = value, not is_idle
        if not isinstance(value, nn.Module):
            self._value(value, path)
        else:
            this = weakref.ref(self)
            self._held = weakref.ref(value, lambda _: _release(this()))  # not held: an encoder that is dropped is freed
            if is_idle:
                self._own(value, type(value).__qualname__)
                self._probe(_about, self._held)
                self._value(vars(value).get("config", vars(value).get("_internal_dict")), f"{path}.config")
            else:
                self._module(value, path)
        with _lock:
            _alive.add(self)
        with torch._C.DisableTorchFunction():
            self._was = [look(self) for look in _LOOKS]
        words, self._words, self._seen, self._pipeline = self._words, [], {}, None
        self.here = digest_of("\x1f".join([w if type(w) is str else f"#{w[0]}" for w in words]).encode())
        is_portable = all(type(w) is str or w[1] is not None for w in words)
        text = "\x1f".join([w if type(w) is str else str(w[1]) for w in words])
        self.there = digest_of(text.encode()) if is_portable else None
        self._sums: dict[int, tuple[Any, ...]] = {}
        # If a layer changed, its weights may have, too: PEFT merges adapters through `tensor.data`, uncounted.
        if old is not None and old.here == self.here:
            self._sums = {name: known for name, known in old._sums.copy().items() if name not in old.suspects}

    def holds(self) -> bool:
        """Whether all is as it was. Cost: 0.25 us for each tensor of a transformer, its layer included."""
        if self.suspects or (isinstance(self._held, weakref.ref) and self._held() is None):
            return False
        try:
            with torch._C.DisableTorchFunction():
                for look, was in zip(_LOOKS, self._was, strict=True):
                    if look(self) != was:
                        return False
        except Exception:  # what cannot be compared, or cannot be read any more, is not the same
            return False
        return True

    def weights(self) -> bytes:
        """Digest of the content of all tensors, on whatever device they are. Cost: reads each changed one once."""
        sums = []
        for tensor, version, address in zip(self.tensors, self._was[0], self._was[1], strict=True):
            known = self._sums.get(id(tensor))
            if known is None or known[:2] != (version, address):
                known = self._sums[id(tensor)] = (version, address, _content(tensor))
            sums.append(known[2])
        return digest_of(repr(sums).encode())

    def is_of(self, value: object) -> bool:
        """Whether ``value`` is what was surveyed."""
        return value is (self._held() if isinstance(value, nn.Module) else self._held)

    def any_layer(self, name: str) -> bool:
        """Whether an attribute of any layer is true."""
        return any(type(each) is dict and each.get(name) for each in self._layers)

    def _module(self, root: nn.Module, path: str) -> None:
        modules = dict(root.named_modules())
        self._seen = {id(module): (number, module) for number, module in enumerate(modules.values())}
        self.identities = frozenset(self._seen)
        self._probes.append((_kind, self._held))
        for place, module in modules.items():
            inside, held = f"{path}.{place}" if place else path, vars(module)
            self._own(type(module))
            if type(module) not in self._classes:
                self._classes[type(module)], forward = None, type(module).forward
                self._own(forward, code_digest(forward) if isinstance(forward, types.FunctionType) else "")
            self._layers += [held] if module is root else [module, held]
            self._words.append(f"{held.get('training')}")
            for name in (*_REGISTRIES, *_HOOKS):
                entries = held.get(name, {})
                (self._layers if entries else self._empty).append(entries)
                for key, entry in entries.items():
                    if getattr(entry, "__module__", None) != _CAPTURES:
                        self._words += [name, key if type(key) is str else ""]
                        self._value(entry, f"{inside}.{key}")
            for name, value in held.items():
                if name not in _OF_TORCH and name != _CAPTURES_MARK:
                    self._words.append(name)
                    self._value(value, f"{inside}.{name}")
            if isinstance(module, torch.jit.ScriptModule):  # holds its tensors elsewhere
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    self._tensor(tensor, inside)

    def _value(self, value: Any, path: str) -> None:
        if is_plain(value):
            self._words.append(f"{type(value).__name__} {value!r}")
        elif id(value) in self._seen:
            self._words.append(f"@{self._seen[id(value)][0]}")
        elif len(self._seen) > _MAX_VALUES:
            raise UnkeyableError("large_state", path)
        else:
            self._seen[id(value)] = len(self._seen), value  # held, so that no other has its id meanwhile
            if value is self._pipeline:
                self._words.append("pipeline")
            elif isinstance(value, nn.Module):
                self._words.append("module")
                self.modules.append((path, value))
            elif isinstance(value, torch.Tensor):
                self._tensor(value, path)
            else:
                self._object(value, path)

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        self._own(type(tensor))
        if attributes := getattr(tensor, "__dict__", None):
            self._wrappers.append(tensor)
            self._each(attributes, path)
        if hasattr(tensor, "__tensor_flatten__"):  # torch swaps wrappers when their module moves; the values are inside
            self._each({name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}, path)
        elif tensor.layout is not torch.strided or tensor.is_inference():
            raise UnkeyableError("uncounted", path)
        else:
            self._words.append(f"{tensor.dtype} {tuple(tensor.shape)}")
            self.tensors.append(tensor)

    def _object(self, value: Any, path: str) -> None:
        kind, tokenizers = type(value), sys.modules.get("tokenizers")
        if tokenizers is not None and isinstance(value, tokenizers.Tokenizer):
            self._probe(_transformers_backend if self._is_tokenizer else _backend, value)
            self._words.append(_model_digest(value))
        elif isinstance(value, re.Pattern):  # in models of transformers, from patterns of weights' names
            self._words.append(f"{value.pattern!r} {value.flags}")
        elif isinstance(value, np.ndarray) or (kind.__module__.startswith("PIL.") and hasattr(value, "tobytes")):
            self._probe(freeze, value)
        elif isinstance(value, _GENERATORS) or (hasattr(kind, "__next__") and not hasattr(kind, "__len__")):
            raise UnkeyableError("unchecked", path)
        elif isinstance(value, types.FunctionType):
            self._own(value, code_digest(value))
            cells = value.__closure__ or ()
            self._objects += [value, *cells]
            self._each([*map(_cell_content, cells), value.__defaults__, value.__kwdefaults__], path)
        elif isinstance(value, types.MethodType):
            self._objects.append(value)
            self._each([value.__func__, value.__self__], path)
        elif isinstance(value, functools.partial):
            self._objects.append(value)
            self._each([value.func, value.args, value.keywords], path)
        elif isinstance(value, _NAMED) or kind.__module__ in _NO_INPUTS:
            self._own(value, getattr(value, "__qualname__", kind.__qualname__))
        else:
            self._parts(value, path)

    def _parts(self, value: Any, path: str) -> None:
        """A container, or an object with attributes; any other is itself."""
        kind, outer = type(value), self._is_tokenizer
        self._own(kind)
        attributes = {
            name: getattr(value, name) for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)
        }
        held = getattr(value, "__dict__", None)
        is_container = isinstance(value, _CONTAINERS)
        if is_container and not (outer and len(value) > _MAX_VOCABULARY):  # tokens that are added are elsewhere, too
            self._objects.append(value)
            self._tables += [value] if isinstance(value, dict) else []
            self._each(sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value, path)
        elif type(held) is not dict and not attributes:
            self._own(value, None)
        if type(held) is dict:
            self._is_tokenizer = outer or callable(getattr(kind, "batch_decode", None))
            self._objects += [value, held]
            self._tables.append(held)
            attributes |= {name: each for name, each in held.items() if not (self._is_tokenizer and name in _MEMORIES)}
        if attributes:
            self._objects.append(value)
            self._each(attributes, path)
        self._is_tokenizer = outer

    def _each(self, values: Any, path: str) -> None:
        self._words.append(str(len(values)))
        pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
        for name, value in pairs:
            self._value(name, path)
            self._value(
                value, f"{path}.{name}" if isinstance(name, str) else f"{path}[{name}]" if is_plain(name) else path
            )

    def _own(self, thing: Any, elsewhere: str | None = "") -> None:
        """A thing whose identity counts in this process; classes are known by name elsewhere."""
        name = f"{thing.__module__}.{thing.__qualname__}" if elsewhere == "" else elsewhere
        self._words.append((_serial(thing), name))

    def _probe(self, look: Any, thing: Any) -> None:
        """A thing that tells by a function what it is."""
        self._probes.append((look, thing))
        self._words.append(repr(look(thing)))


_LOOKS: tuple[Callable[[Any], Any], ...] = (
    lambda s: [tensor._version for tensor in s.tensors],
    lambda s: list(map(torch.Tensor.data_ptr, s.tensors)),
    lambda s: gc.get_referents(*s._layers),
    lambda s: any(s._empty),
    lambda s: _typed(gc.get_referents(*s._objects, *map(vars, s._wrappers))),
    lambda s: list(itertools.chain.from_iterable(s._tables)),
    lambda s: [look(thing) for look, thing in s._probes],
    lambda s: [kind.forward for kind in s._classes],
)
"""What the cheap comparison looks at: first the versions and addresses of tensors."""


def _typed(values: list[Any]) -> tuple[list[Any], list[type]]:
    return values, list(map(type, values))


def _release(survey: Survey | None) -> None:
    """Let go of what a module held."""
    if survey is not None:
        survey.suspects.add(0)
        for name in ("tensors", "_layers", "_empty", "_objects", "_tables", "_wrappers", "_was"):
            setattr(survey, name, [])
        survey._sums = {}


def suspect_stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """A hook after the steps of all optimizers: a fused one changes weights without a new version (torch 2.13)."""
    stepped = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    with _lock:
        for survey in _alive:
            survey.suspects |= stepped.intersection(map(id, survey.tensors))


_numbers = itertools.count()
_numbered: dict[int, tuple[Any, int]] = {}


def _serial(thing: object) -> int:
    """A number that no other object ever has."""
    name = id(thing)
    with _lock:  # two threads that meet it first give it one number
        reference, number = _numbered.get(name, (None, 0))
        if reference is None or reference() is not thing:
            number = next(_numbers)
            with contextlib.suppress(TypeError):  # without weak references: each survey numbers it anew
                _numbered[name] = weakref.ref(thing, lambda gone: _forget(name, gone)), number
        return number


def _forget(name: int, gone: Any) -> None:
    if _numbered.get(name, (None,))[0] is gone:
        del _numbered[name]


def _kind(reference: Any) -> tuple[Any, ...]:
    module = reference()
    return type(module), vars(module)


def _about(reference: Any) -> tuple[Any, ...]:
    """What counts of a module that does not run."""
    module = reference()
    dtype = next((weight.dtype for weight in module.parameters() if weight.is_floating_point()), None)
    plain = [(k, v) for k, v in vars(module).items() if is_plain(v) and not k.startswith("_") and k != "training"]
    return type(module).__qualname__, dtype, *plain


def _slots(kind: type) -> tuple[str, ...]:
    names = vars(kind).get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _cell_content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _content(tensor: torch.Tensor) -> tuple[Any, ...]:
    with torch.no_grad():
        if tensor.is_quantized:
            return tensor_checksum(tensor.int_repr()), tensor.qscheme(), tensor.dequantize().sum().item()
        return tensor_checksum(tensor)


def _backend(tokenizer: Any) -> Any:
    """What a tokenizer of the library ``tokenizers`` does, but for its vocabulary."""
    return _transformers_backend(tokenizer), tokenizer.truncation, tokenizer.padding


def _transformers_backend(tokenizer: Any) -> Any:
    """The same inside of a tokenizer of transformers, which sets truncation and padding in every call."""
    steps = f"{tokenizer.normalizer} {tokenizer.pre_tokenizer} {tokenizer.post_processor}"
    dropout = getattr(tokenizer.model, "dropout", None)
    return steps, dropout, tokenizer.get_added_tokens_decoder(), tokenizer.get_vocab_size()


_digests: collections.OrderedDict[int, tuple[Any, str]] = collections.OrderedDict()


def _model_digest(tokenizer: Any) -> str:
    """Of the vocabulary and all rules; read once, because it takes up to 0.1 s."""
    key = hash((id(tokenizer), repr(_transformers_backend(tokenizer))))
    known, content = _digests.get(key, (None, ""))
    if known is not tokenizer:
        parts = tokenizer.model, tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor
        content = digest_of(*[b"" if part is None else part.__getstate__() for part in parts]).hex()
        with _lock:
            _digests[key] = tokenizer, content
            while len(_digests) > 16:
                _digests.popitem(last=False)
    return content
