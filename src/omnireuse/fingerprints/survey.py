"""Everything that one value holds, by its content. A `Watch` tells whether it has to be surveyed anew."""

from __future__ import annotations

import array
import collections
import contextlib
import functools
import itertools
import logging
import operator
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from omnireuse.fingerprints.checksums import checksums
from omnireuse.fingerprints.functions import cell_content, code_digest, functions_of
from omnireuse.fingerprints.plain import UnkeyableError, digest_of, freeze, is_plain
from omnireuse.fingerprints.watch import Watch

__all__ = ["CONTAINERS", "Survey", "Words", "checked", "plain_word", "slots_of"]

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # those of the backward pass and of state_dict change no output
_OF_TORCH = frozenset(vars(nn.Module()))
_CAPTURES = "transformers.utils.output_capturing"  # its hooks note outputs and change none; the first call sets them
_CAPTURES_MARK = "_output_capturing_hooks_installed"
CONTAINERS = (list, tuple, set, frozenset, collections.deque, dict, bytearray, array.array)
_NAMED = (type, types.ModuleType, types.BuiltinFunctionType, logging.Logger)
_NO_INPUTS = frozenset(
    {
        *("threading", "_thread", "queue", "_queue", "concurrent.futures.thread", "omnireuse.prompts.wrapper"),
        "torch._subclasses.fake_tensor",  # a mode notes every tensor that it has made
    }
)
_GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator)  # a draw changes them, and nothing tells
_MEMORIES = frozenset({"cache", "deprecation_warnings"})  # of tokenizers: words that were split, what was said once
_MAX_VALUES = 50_000
_MAX_WATCHED = 5_000  # of one container of a tokenizer: a larger vocabulary is read once
_lock = threading.RLock()

Words = tuple[Any, ...]
"""What one attribute holds. A word is a text, or a number of this process with the text that other processes have for
the same, None if there is none."""


@contextlib.contextmanager
def checked() -> Any:
    """A look at things of unknown kinds: whatever goes wrong there says that they cannot be checked."""
    try:
        yield
    except UnkeyableError:
        raise
    except Exception as error:
        raise UnkeyableError("unchecked", f"{type(error).__name__}: {error}") from error


class Survey:
    """One value and all that it holds, at one moment.

    Args:
        value: a module, or any object that is not plain (see `is_plain`).
        path: how it was found.
        pipeline: left out.
        old: an earlier survey of the same: its checksums may still be right.

    Attributes:
        path: how it was found.
        items: what each attribute holds, in words, by path.
        parameters: paths of those that are parameters.
        containers: ids of attributes that are containers, by path.
        identities: ids of the modules that are surveyed.
        kinds: classes of the modules.
        watch: what tells that all of it is as it was.

    Raises:
        UnkeyableError: something can change unseen.
    """

    def __init__(self, value: object, path: str, pipeline: object, old: Survey | None = None) -> None:
        self._begin(path, pipeline, old)
        self._held: Any = value
        if isinstance(value, nn.Module):
            self._held = self._weakly(value)  # an encoder that is dropped is freed
            self.watch.probes.append((_kind, self._held))
            self._module(value, path)
        else:
            self._open(path)
            self._value(value, path)
        self._end(old)

    def _begin(self, path: str, pipeline: object, old: Survey | None) -> None:
        self.path, self._pipeline, self._is_tokenizer = path, pipeline, False
        self._words: list[Any] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        self._pins: dict[int, tuple[Any, int]] = {}
        self._old_pins = {} if old is None else old._pins
        self.watch = Watch()
        self._sums: dict[int, tuple[Any, ...]] = {}
        self._groups: dict[str, list[Any]] = {}
        self._places: list[str] = []
        self.parameters: set[str] = set()
        self.containers: dict[str, int] = {}
        self.kinds: dict[type, None] = {}
        self.identities: set[int] = set()
        self._digests: dict[Any, Any] = {}

    def _end(self, old: Survey | None) -> None:
        self.watch.start()
        self.items: dict[str, Words] = {path: tuple(words) for path, words in self._groups.items()}
        self._words, self._seen, self._groups, self._old_pins, self._pipeline = [], {}, {}, {}, None
        # If a layer changed, its weights may have, too: PEFT merges adapters through `tensor.data`, uncounted.
        if old is not None and all(map(_is_count, _differing(self.items, old.items))):
            self._keep_sums(old)

    def _keep_sums(self, old: Survey) -> None:
        self._sums = {name: known for name, known in old._sums.copy().items() if name not in old.watch.suspects}

    def holds(self) -> bool:
        """Whether all is as it was."""
        return self.watch.holds()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors."""
        return self.watch.tensors

    @property
    def value(self) -> Any:
        """What was surveyed; None if it is gone."""
        return self._held() if isinstance(self._held, weakref.ref) else self._held

    def sums(self) -> dict[str, tuple[Any, ...]]:
        """Checksums of all tensors by path, on whatever device they are. Cost: reads each changed one once."""
        stamps = list(zip(self.watch.versions, self.watch.addresses, strict=True))
        pairs = zip(self.tensors, stamps, strict=True)
        new = [(tensor, stamp) for tensor, stamp in pairs if self._sums.get(id(tensor), ((), ()))[0] != stamp]
        for (tensor, stamp), content in zip(new, _contents([tensor for tensor, _ in new]), strict=True):
            self._sums[id(tensor)] = stamp, content
        found: dict[str, tuple[Any, ...]] = {}
        for tensor, path in zip(self.tensors, self._places, strict=True):
            found[path] = (*found.get(path, ()), self._sums[id(tensor)][1])
        return found

    def digests(self, without: frozenset[str]) -> tuple[bytes, bytes, bytes | None]:
        """Of the weights, of all else, and of all else in words of any process (None if there are none).

        Args:
            without: paths that are left out.
        """
        known = self._digests.get(without)
        if known is None:
            weights = [each for each in self.sums().items() if each[0] not in without]
            words = [(path, each) for path, each in self.items.items() if path not in without]
            known = digest_of(repr(weights).encode()), digest_of(_here(words)), _there(words)
            self._digests[without] = known
        return known

    def content(self, path: str) -> Any:
        """What a path holds, to be compared with the same at another time."""
        return self.items.get(path), self.sums().get(path) if path in self._places else None

    def moved(self, now: Survey) -> set[str]:
        """Paths whose content differs."""
        if now is self:
            return set()
        was, sums = self.sums(), now.sums()
        changed = {path for path in was.keys() | sums.keys() if was.get(path) != sums.get(path)}
        return changed | {path for path, *_ in _differing(self.items, now.items)}

    def release(self) -> None:
        """Keep nothing alive any more."""
        for each in (self.watch, self._sums, self._pins):
            each.clear()

    def _weakly(self, module: nn.Module) -> weakref.ref[nn.Module]:
        this = weakref.ref(self)

        def release(_: object) -> None:
            if (survey := this()) is not None:
                survey.release()

        return weakref.ref(module, release)

    def _open(self, path: str, value: object = None) -> None:
        """What follows belongs to this path, the value first."""
        self._path, self._words = path, self._groups.setdefault(path, [])
        if isinstance(value, CONTAINERS):
            self.containers[path] = id(value)

    def _module(self, root: nn.Module, path: str) -> None:
        modules = {place: each for place, each in root.named_modules() if id(each) not in self.identities}
        for module in modules.values():
            self._seen.setdefault(id(module), (len(self._seen), module))
        self.identities |= set(map(id, modules.values()))
        for place, module in modules.items():
            inside, held = f"{path}.{place}" if place else path, vars(module)
            self._open(inside)
            self._own(type(module))
            if type(module) not in self.kinds:
                self.kinds[type(module)], forward = None, type(module).forward
                self.watch.probes.append((_forward, type(module)))
                self._own(forward, code_digest(forward) if isinstance(forward, types.FunctionType) else "")
            self.watch.layers += [held] if module is self.value else [module, held]
            self._words.append(f"{held.get('training')}")
            for name in (*_REGISTRIES, *_HOOKS):
                entries = held.get(name, {})
                (self.watch.layers if entries else self.watch.empty).append(entries)
                for key, entry in entries.items():
                    if getattr(entry, "__module__", None) != _CAPTURES:
                        self._open(f"{inside}.{key if type(key) is str else name}")
                        self._words.append(name)
                        self._value(entry, f"{inside}.{key}")
            for name, value in held.items():
                if name not in _OF_TORCH and name != _CAPTURES_MARK:
                    self._open(f"{inside}.{name}", value)
                    self._value(value, f"{inside}.{name}")
            if isinstance(module, torch.jit.ScriptModule):  # holds its tensors elsewhere
                self._open(f"{inside} (script)")
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    self._tensor(tensor, f"{inside} (script)")

    def _value(self, value: object, path: str) -> None:
        if is_plain(value):
            self._words.append(plain_word(value))
        elif id(value) in self._seen:
            self._words.append(f"@{self._seen[id(value)][0]}")
        elif len(self._seen) > _MAX_VALUES:
            raise UnkeyableError("large_state", path)
        else:
            self._seen[id(value)] = len(self._seen), value  # held, so that no other has its id meanwhile
            if value is self._pipeline:
                self._words.append("pipeline")
            elif isinstance(value, nn.Module):
                self._other_module(value, path)
            elif isinstance(value, torch.Tensor):
                self._tensor(value, path)
            else:
                self._object(value, path)

    def _other_module(self, module: nn.Module, path: str) -> None:
        outer = self._path
        self._own(module, type(module).__qualname__)
        self._module(module, path)
        self._open(outer)

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        self._own(type(tensor))
        if attributes := getattr(tensor, "__dict__", None):
            self.watch.objects.append(attributes)
            self._each(attributes, path)
        if hasattr(tensor, "__tensor_flatten__"):  # torch swaps wrappers when their module moves; the values are inside
            self._each({name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}, path)
        elif tensor.layout is not torch.strided or tensor.is_inference():
            raise UnkeyableError("uncounted", path)
        else:
            self._words.append(f"{tensor.dtype} {tuple(tensor.shape)}")
            self.watch.tensors.append(tensor)
            self._places.append(self._path)
            if isinstance(tensor, nn.Parameter):
                self.parameters.add(self._path)

    def _object(self, value: object, path: str) -> None:
        kind, tokenizers = type(value), sys.modules.get("tokenizers")
        if tokenizers is not None and isinstance(value, tokenizers.Tokenizer):
            for look in (_backend,) if self._is_tokenizer else (_backend, _lengths):
                self._probe(look, value)
            self._words.append(_model_digest(value))
        elif isinstance(value, re.Pattern):  # in models of transformers, from patterns of weights' names
            self._words.append(f"{value.pattern!r} {value.flags}")
        elif isinstance(value, np.ndarray) or (kind.__module__.startswith("PIL.") and hasattr(value, "tobytes")):
            self._probe(freeze, value)
        elif isinstance(value, (bytearray, array.array)):
            self._probe(bytes, value)
        elif isinstance(value, _GENERATORS) or (hasattr(kind, "__next__") and not hasattr(kind, "__len__")):
            raise UnkeyableError("unchecked", path)
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.MethodType):
            self.watch.objects.append(value)
            self._each([value.__func__, value.__self__], path)
        elif isinstance(value, functools.partial):
            self.watch.objects.append(value)
            self._each([value.func, value.args, value.keywords], path)
        elif isinstance(value, (staticmethod, classmethod, property, functools.cached_property)):
            self._each(list(functions_of(value)), path)
        elif isinstance(value, _NAMED) or kind.__module__ in _NO_INPUTS:
            self._own(value, getattr(value, "__qualname__", kind.__qualname__))
        else:
            self._parts(value, path)

    def _function(self, function: types.FunctionType, path: str) -> None:
        self._own(function, code_digest(function))
        cells = function.__closure__ or ()
        self.watch.probes.append((_code, function))
        self.watch.objects += cells
        outer = self._path
        for name, content in zip(function.__code__.co_freevars, map(cell_content, cells), strict=True):
            self._open(f"{path}:{name}", content)
            self._value(content, f"{path}:{name}")
        self._open(outer)
        self._each([function.__defaults__, function.__kwdefaults__], path)

    def _parts(self, value: Any, path: str) -> None:
        """A container, or an object with attributes; any other is itself."""
        kind, outer = type(value), self._is_tokenizer
        self._own(kind)
        attributes = slots_of(value)
        held = getattr(value, "__dict__", None)
        is_container = isinstance(value, CONTAINERS)
        if is_container and outer and len(value) > _MAX_WATCHED:  # tokens that are added are elsewhere, too
            self._probe(len, value)
            self._words.append(_once(value, len(value), lambda: repr(value).encode()))
        elif is_container:
            self._container(value, path)
        elif isinstance(value, (str, bytes, int, float, complex)):
            self._words.append(plain_word(value))
        elif type(held) is not dict and not attributes:
            self._own(value, None)
        if type(held) is dict:
            self._is_tokenizer = outer or callable(getattr(kind, "batch_decode", None))
            self.watch.objects += [value, held]
            self.watch.tables.append(held)
            attributes |= {name: each for name, each in held.items() if not (self._is_tokenizer and name in _MEMORIES)}
        if attributes:
            self.watch.objects.append(value)
        if attributes and path == self.path:
            for name, each in attributes.items():
                self._open(f"{path}.{name}", each)
                self._value(each, f"{path}.{name}")
        elif attributes:
            self._each(attributes, path)
        self._is_tokenizer = outer

    def _container(self, value: object, path: str) -> None:
        self.watch.objects.append(value)
        self.watch.tables += [value] if isinstance(value, dict) else []
        self._each(sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value, path)

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
        self._words.append((self._number(thing), name))

    def _number(self, thing: object) -> int:
        """A number that no other object ever has."""
        try:
            return _serial(thing)
        except TypeError:  # without weak references: known as long as each survey finds it again
            pinned = self._old_pins.get(id(thing))
            self._pins[id(thing)] = pinned = pinned or (thing, next(_numbers))
            return pinned[1]

    def _probe(self, look: Any, thing: Any) -> None:
        """A thing that tells by a function what it is."""
        self.watch.probes.append((look, thing))
        self._words.append(repr(look(thing)))


_forward = operator.attrgetter("forward")
_code = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")


def plain_word(value: object) -> str:
    """A plain value in a word."""
    return f"{type(value).__name__} {value!r}"


def _differing(one: Mapping[str, Words], other: Mapping[str, Words]) -> list[tuple[str, Words, Words]]:
    """Paths with what they hold on both sides, if it differs."""
    if one == other:
        return []
    pairs = [(path, one.get(path, ()), other.get(path, ())) for path in one.keys() | other.keys()]
    return [each for each in pairs if each[1] != each[2]]


def _is_count(difference: tuple[str, Words, Words]) -> bool:
    """Whether a number counts on: that says nothing of the weights."""
    return all(len(words) == 1 and str(words[0]).startswith("int ") for words in difference[1:])


def _here(words: Iterable[tuple[str, Words]]) -> bytes:
    return "\x1e".join(
        ["\x1f".join([path, *[w if type(w) is str else f"#{w[0]}" for w in each]]) for path, each in words]
    ).encode()


def _there(words: Iterable[tuple[str, Words]]) -> bytes | None:
    texts = [(path, [w if type(w) is str else w[1] for w in each]) for path, each in words]
    return None if any(None in each for _, each in texts) else digest_of(repr(texts).encode())


def slots_of(value: object) -> dict[str, Any]:
    """Attributes in the ``__slots__`` of an object's classes, by name."""
    found = {}
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


_numbers = itertools.count()
_numbered: dict[int, tuple[Any, int]] = {}


def _serial(thing: object) -> int:
    name = id(thing)
    with _lock:  # two threads that meet it first give it one number
        reference, number = _numbered.get(name, (None, 0))
        if reference is None or reference() is not thing:
            reference = weakref.ref(thing, lambda gone: _forget(name, gone))
            number = next(_numbers)
            _numbered[name] = reference, number
        return number


def _forget(name: int, gone: object) -> None:
    if _numbered.get(name, (None,))[0] is gone:
        del _numbered[name]


def _kind(reference: Any) -> tuple[Any, ...]:
    module = reference()
    return type(module), vars(module)


def _contents(tensors: list[torch.Tensor]) -> list[tuple[Any, ...]]:
    with torch.no_grad():
        found: list[tuple[Any, ...]] = [*checksums(each.int_repr() if each.is_quantized else each for each in tensors)]
        for place, each in enumerate(tensors):
            if each.is_quantized:
                found[place] += each.qscheme(), each.dequantize().sum().item()
        return found


def _backend(tokenizer: Any) -> Any:
    """What a tokenizer of the library ``tokenizers`` does, but for its vocabulary and its lengths."""
    steps = f"{tokenizer.normalizer} {tokenizer.pre_tokenizer} {tokenizer.post_processor}"
    dropout = getattr(tokenizer.model, "dropout", None)
    return steps, dropout, tokenizer.get_added_tokens_decoder(), tokenizer.get_vocab_size()


_lengths = operator.attrgetter("truncation", "padding")  # one of transformers sets them in every call
_digests: collections.OrderedDict[int, tuple[Any, str]] = collections.OrderedDict()


def _model_digest(tokenizer: Any) -> str:
    """Of the vocabulary and all rules; read once, because it takes up to 0.1 s."""
    parts = tokenizer.model, tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor
    about = repr(_backend(tokenizer))
    return _once(tokenizer, about, lambda: b"\x1f".join([b"" if p is None else p.__getstate__() for p in parts]))


def _once(thing: object, about: object, read: Callable[[], bytes]) -> str:
    """The digest of something that is read once, as long as it is ``about`` the same."""
    key = hash((id(thing), about))
    known, content = _digests.get(key, (None, ""))
    if known is not thing:
        content = digest_of(read()).hex()
        with _lock:
            _digests[key] = thing, content
            while len(_digests) > 16:
                _digests.popitem(last=False)
    return content
