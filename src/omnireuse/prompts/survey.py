"""Everything reachable from one value that `encode_prompt` read: compared cheaply with what it was, and known by content.

`gc.get_referents` lists what objects refer to, in one call: all attributes, entries, layers and weights of an encoder.
As long as that list is the same, and every tensor has its version and address, nothing changed. What is not the same is
surveyed anew, and its content decides.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import logging
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import nn

from omnireuse.prompts.checksum import tensor_checksum
from omnireuse.prompts.code import code_digest
from omnireuse.prompts.keys import UnkeyableError, digest_of, freeze, is_plain

__all__ = ["Survey", "serial"]

logger = logging.getLogger("omnireuse")

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # those of the backward pass and of state_dict change no output
_HOLDERS = frozenset(_REGISTRIES + _HOOKS)
_OF_TORCH = frozenset(vars(nn.Module()))
_CAPTURES = "transformers.utils.output_capturing"  # its hooks note outputs and change none; installed by the first call
_CAPTURES_MARK = "_output_capturing_hooks_installed"
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)
_OF_THREADS = frozenset({"threading", "_thread", "queue", "_queue", "concurrent.futures.thread"})
_BY_NAME = (type, types.ModuleType, types.BuiltinFunctionType, logging.Logger)
_ALWAYS_NEW = (np.random.Generator, np.random.RandomState, torch.Generator)  # a draw changes them, and nothing tells
_MAX_VALUES = 50_000
_MAX_VOCABULARY = 1_000
_numbers = itertools.count()
_numbered: dict[int, tuple[Any, int]] = {}


def serial(thing: object) -> int:
    """A number that no other object ever has."""
    name = id(thing)
    reference, number = _numbered.get(name, (None, 0))
    if reference is not None and reference() is thing:
        return number
    number = next(_numbers)
    try:
        _numbered[name] = weakref.ref(thing, lambda gone: _forget(name, gone)), number
    except TypeError:  # without weak references: each survey numbers it anew
        pass
    return number


def _forget(name: int, gone: Any) -> None:
    if _numbered.get(name, (None,))[0] is gone:
        del _numbered[name]


class Survey:
    """One value and what it holds, at one moment. A module is surveyed whole; modules elsewhere in the value are named.

    Args:
        value: not plain (see `is_plain`).
        path: how it was found, for messages and stores outside the process.
        pipeline: left out, because reads of it are recorded.
        old: a survey whose checksums may still be right.

    Attributes:
        here: digest of all but the weights; identity counts where content cannot be known.
        there: the same for other processes; None where identity decides.
        modules: further modules, by path.
        identities: ids of the modules that are surveyed.

    Raises:
        UnkeyableError: something can change unseen.

    Cost: about 20 us for each module; the checksums read each weight once.
    """

    def __init__(self, value: Any, path: str, pipeline: object, old: Survey | None = None) -> None:
        self._pipeline, self._is_tokenizer = pipeline, False
        self._words: list[Any] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        self._layers: list[nn.Module] = []
        self._layouts: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        self._entries: list[Any] = []
        self._strict: list[Any] = []  # of other objects: few; types and names count as well
        self._tables: list[Any] = []
        self._empty: list[Any] = []
        self._wrappers: list[torch.Tensor] = []
        self._probes: list[Any] = []
        self._classes: dict[type, Any] = {}
        self.tensors: list[torch.Tensor] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.identities: frozenset[int] = frozenset()
        self.suspects: set[int] = set()
        this = weakref.ref(self)
        self._root = weakref.ref(value, lambda _: _let_go(this())) if isinstance(value, nn.Module) else None
        self._kind: type = type(None)
        if isinstance(value, nn.Module):
            self._module(value, path)
        else:
            self._value(value, path)
        self._take()
        words = self._words
        self.here = digest_of("\x1f".join([w if type(w) is str else f"#{w[0]}" for w in words]).encode())
        is_portable = all(type(w) is str or w[1] is not None for w in words)
        text = "\x1f".join([w if type(w) is str else str(w[1]) for w in words])
        self.there = digest_of(text.encode()) if is_portable else None
        # Where a layer changed, its weights may have, too: PEFT merges adapters through `tensor.data`, uncounted.
        is_like = old is not None and old.here == self.here
        self._sums = {n: old._sums[n] for n in old._sums.keys() - old.suspects} if is_like else {}
        del self._words, self._seen, self._pipeline
        self._held = value if self._root is None else None

    def holds(self) -> bool:
        """Whether all is as it was. Cost: 0.25 us for each tensor of a transformer, its module included."""
        root = None if self._root is None else self._root()
        if self.suspects or type(root) is not self._kind or (root is not None and vars(root) is not self._dict):
            return False
        try:
            with torch._C.DisableTorchFunction():
                return bool(
                    gc.get_referents(*self._layers) == self._kinds
                    and [list(map(get, layers)) for get, layers in self._rows] == self._values
                    and [list(map(len, layers)) for _, layers in self._rows] == self._sizes
                    and gc.get_referents(*self._entries) == self._members
                    and not any(self._empty)
                    and [tensor._version for tensor in self.tensors] == self._versions
                    and list(map(torch.Tensor.data_ptr, self.tensors)) == self._addresses
                    and [kind.forward for kind in self._classes] == self._forwards
                    and (strict := gc.get_referents(*self._strict, *map(vars, self._wrappers))) == self._strict_were
                    and list(map(type, strict)) == self._types
                    and list(itertools.chain.from_iterable(self._tables)) == self._names
                    and [probe(thing) for probe, thing in self._probes] == self._answers
                )
        except Exception:  # noqa: BLE001  # what cannot be compared, or cannot be read any more, is not the same
            return False

    def suspect(self, tensors: set[int]) -> None:
        """These tensors, by id, may have another content at the same version and address."""
        self.suspects |= self._sums.keys() & tensors

    def is_of(self, value: object) -> bool:
        """Whether ``value`` is what was surveyed."""
        return value is self._held if self._root is None else value is self._root()

    def is_training(self) -> bool:
        """Whether a module is in training mode."""
        return any(layer["training"] for _, layers in self._rows for layer in layers)

    def is_compiled(self) -> bool:
        """Whether a module runs without hooks, as ``module.compile()`` makes it."""
        return any(layer.get("_compiled_call_impl") is not None for _, layers in self._rows for layer in layers)

    def release(self) -> None:
        """Let go of everything; the survey holds no more."""
        self.suspects.add(0)
        for name in ("_layers", "_rows", "_values", "_entries", "_members", "_empty", "tensors"):
            setattr(self, name, [])
        for name in ("_strict", "_strict_were", "_tables", "_wrappers", "_probes"):
            setattr(self, name, [])
        self._layouts, self._held, self._sums = {}, None, {}

    def weights(self) -> bytes:
        """Digest of the content of all tensors, on whatever device they are."""
        sums = []
        for tensor, version, address in zip(self.tensors, self._versions, self._addresses, strict=True):
            known = self._sums.get(id(tensor))
            if known is None or known[:2] != (version, address):
                known = self._sums[id(tensor)] = (version, address, _content(tensor))
            sums.append(known[2])
        return digest_of(repr(sums).encode())

    def _take(self) -> None:
        """Note what the cheap comparison compares."""
        with torch._C.DisableTorchFunction():
            self._kinds = gc.get_referents(*self._layers)
            self._rows = [(itemgetter(*names), layers) for names, layers in self._layouts.items()]
            self._values = [list(map(get, layers)) for get, layers in self._rows]
            self._sizes = [list(map(len, layers)) for _, layers in self._rows]
            self._members = gc.get_referents(*self._entries)
            self._versions = [tensor._version for tensor in self.tensors]
            self._addresses = [tensor.data_ptr() for tensor in self.tensors]
            self._strict_were = gc.get_referents(*self._strict, *map(vars, self._wrappers))
            self._types = list(map(type, self._strict_were))
            self._names = list(itertools.chain.from_iterable(self._tables))
            self._answers = [probe(thing) for probe, thing in self._probes]
            self._forwards = [kind.forward for kind in self._classes]

    def _module(self, root: nn.Module, path: str) -> None:
        modules = dict(root.named_modules())
        numbers = {id(module): number for number, module in enumerate(modules.values())}
        self.identities, self._kind, self._dict = frozenset(numbers), type(root), vars(root)
        self._seen |= {id(module): (number, module) for number, module in enumerate(modules.values())}
        for place, module in modules.items():
            inside, held = f"{path}.{place}" if place else path, vars(module)
            self._class(type(module))
            self._classes[type(module)] = None
            self._layers += [] if module is root else [module]
            names = [name for name in held if name not in _OF_TORCH or (name in _HOLDERS and held[name])]
            self._layouts.setdefault((*names, "training"), []).append(held)
            for name in _REGISTRIES:
                entries = held.get(name) or {}
                (self._entries if entries else self._empty).append(entries)
                self._words += [name, str(len(entries))]
                for key, entry in entries.items():
                    self._words.append(key)
                    self._value(entry, inside)
            if isinstance(module, torch.jit.ScriptModule):  # holds its tensors elsewhere
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    self._tensor(tensor, inside)
            for name in _HOOKS:
                hooks = held.get(name, {})
                (self._entries if hooks else self._empty).append(hooks)
                for hook in hooks.values():
                    if getattr(hook, "__module__", None) != _CAPTURES:
                        self._words.append(name)
                        self._value(hook, inside)
            self._words.append(f"{held['training']}")
            for name, value in held.items():
                if name not in _OF_TORCH and name != _CAPTURES_MARK:
                    self._words.append(name)
                    self._value(value, f"{inside}.{name}")

    def _value(self, value: Any, path: str) -> None:
        """One value among others."""
        if is_plain(value):
            self._words.append(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self._seen:
            self._words.append(f"@{self._seen[id(value)][0]}")
            return
        self._seen[id(value)] = len(self._seen), value  # held, so that no other has its id meanwhile
        if len(self._seen) > _MAX_VALUES:
            raise UnkeyableError("large_state", path)
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
        self._class(type(tensor))
        attributes = getattr(tensor, "__dict__", None) or {}
        flatten = getattr(tensor, "__tensor_flatten__", None)
        if attributes:
            self._wrappers.append(tensor)
            self._each(attributes, path)
        if flatten is not None:  # a wrapper: torch swaps it when its module moves, and its values are inside
            for name in flatten()[0]:
                self._value(getattr(tensor, name), f"{path}.{name}")
        elif tensor.layout is not torch.strided or tensor.is_inference():
            raise UnkeyableError("uncounted", path)
        else:
            self._words.append(f"{tensor.dtype} {tuple(tensor.shape)}")
            self.tensors.append(tensor)

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        tokenizers = sys.modules.get("tokenizers")
        if tokenizers is not None and isinstance(value, tokenizers.Tokenizer):
            probe = _transformers_backend if self._is_tokenizer else _backend
            self._probes.append((probe, value))
            self._words.append(_tokenizer_content(value, probe(value)))
        elif isinstance(value, np.ndarray) or (kind.__module__.startswith("PIL.") and hasattr(value, "tobytes")):
            self._probes.append((freeze, value))
            self._words.append(repr(freeze(value)))
        elif isinstance(value, _ALWAYS_NEW) or (hasattr(kind, "__next__") and not hasattr(kind, "__len__")):
            raise UnkeyableError("unchecked", path)
        elif isinstance(value, types.FunctionType):
            self._own(value, code_digest(value))
            cells = value.__closure__ or ()
            self._strict += [*cells, value]
            self._each([*map(_cell_content, cells), value.__defaults__, value.__kwdefaults__], path)
        elif isinstance(value, types.MethodType):
            self._strict.append(value)
            self._each([value.__func__, value.__self__], path)
        elif isinstance(value, functools.partial):
            self._strict.append(value)
            self._each([value.func, value.args, value.keywords], path)
        elif isinstance(value, _BY_NAME) or kind.__module__ in _OF_THREADS:
            self._own(value, f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}")
        else:
            self._parts(value, path)

    def _parts(self, value: Any, path: str) -> None:
        """A container, or an object with attributes; any other is itself."""
        kind, is_known = type(value), False
        self._class(kind)
        if isinstance(value, (*_CONTAINERS, dict)):
            is_known = True
            if self._is_tokenizer and len(value) > _MAX_VOCABULARY:  # added tokens are elsewhere, too
                self._own(value, None)
            else:
                self._strict.append(value)
                self._tables += [value] if isinstance(value, dict) else []
                self._each(sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value, path)
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict:
            is_known, outer = True, self._is_tokenizer
            self._is_tokenizer = outer or callable(getattr(kind, "batch_decode", None))
            if self._is_tokenizer and "cache" in attributes:  # words that were split: a memory, and no setting
                attributes = _without_cache(value)
                self._probes.append((_without_cache, value))
            else:
                self._strict += [value, attributes]
                self._tables.append(attributes)
            self._each(attributes, path)
            self._is_tokenizer = outer
        slots = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
        if slots:
            is_known = True
            self._strict.append(value)
            self._each({name: getattr(value, name) for name in slots}, path)
        if not is_known:
            self._own(value, None)

    def _each(self, values: Any, path: str) -> None:
        self._words.append(str(len(values)))
        if isinstance(values, Mapping):
            for name, value in values.items():
                self._value(name, path)
                self._value(value, f"{path}.{name}" if isinstance(name, str) else path)
        else:
            for number, value in enumerate(values):
                self._value(value, f"{path}[{number}]")

    def _class(self, kind: type) -> None:
        self._own(kind, f"{kind.__module__}.{kind.__qualname__}")

    def _own(self, thing: object, elsewhere: str | None) -> None:
        """A thing whose identity counts in this process."""
        self._words.append((serial(thing), elsewhere))


def _let_go(survey: Survey | None) -> None:
    if survey is not None:
        survey.release()


def _slots(kind: type) -> Iterable[str]:
    names = vars(kind).get("__slots__", ())
    return (names,) if isinstance(names, str) else names


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


def _without_cache(tokenizer: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(tokenizer).items() if name != "cache"}


def _backend(tokenizer: Any) -> str:
    """What a tokenizer of Hugging Face's Rust library does, but for its vocabulary."""
    return f"{_transformers_backend(tokenizer)} {tokenizer.truncation} {tokenizer.padding}"


def _transformers_backend(tokenizer: Any) -> str:
    """The same for one inside of a tokenizer of transformers, which sets truncation and padding in every call."""
    model = tokenizer.model
    parts = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor, getattr(model, "dropout", None)
    return f"{parts} {tokenizer.get_added_tokens_decoder()} {tokenizer.get_vocab_size()} {type(model).__name__}"


_contents: collections.OrderedDict[int, tuple[Any, str, str]] = collections.OrderedDict()


def _tokenizer_content(tokenizer: Any, settings: str) -> str:
    """Digest of the whole tokenizer; its vocabulary is read once."""
    known = _contents.get(id(tokenizer))
    if known is None or known[0] is not tokenizer or known[1] != settings:
        parts = tokenizer.model, tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor
        content = digest_of(*[b"" if part is None else part.__getstate__() for part in parts]).hex()
        known = _contents[id(tokenizer)] = (tokenizer, settings, content)
        while len(_contents) > 16:
            _contents.popitem(last=False)
    return f"{settings} {known[2]}"

