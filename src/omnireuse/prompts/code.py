"""What the code of `encode_prompt` mentions, and under which names it stores: facts of code objects, read once each."""

from __future__ import annotations

import dis
import functools
import operator
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from omnireuse.fingerprints.functions import cell_content, functions_of

__all__ = ["Code", "Facts", "facts_of_class", "is_library"]

_LIBRARIES = frozenset(sys.stdlib_module_names) | {
    *("torch", "transformers", "tokenizers", "numpy", "PIL", "huggingface_hub", "accelerate", "peft", "safetensors"),
    *("omnireuse", "regex", "ftfy", "bs4", "pytest", "_pytest"),
}
# Of diffusers, pipelines and their loaders are read like code of the user.
_OTHERS = ("models", "utils", "configuration_utils", "schedulers", "hooks", "pipelines.pipeline_utils")
_OF_DIFFUSERS = tuple([f"diffusers.{name}" for name in _OTHERS])
_STORES = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"})
_FORMATS = frozenset({"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"})
_FILLERS = frozenset({"CACHE", "PRECALL", "EXTENDED_ARG", "NOP"})
_OF_ALL_WEIGHTS = frozenset({"parameters", "named_parameters", "buffers", "named_buffers", "state_dict"})
_UPDATES = frozenset({"append", "appendleft", "extend", "add", "insert"})  # which return nothing
_LONGEST = 80  # characters of a string that names something


class Facts(NamedTuple):
    """What code objects say.

    Args:
        names: attributes, globals and strings like names.
        stored: names under which it stores; a global, or a variable of a closure, with a colon in front.
        anew: those of them whose new value is not made of the old one alone, as that of ``self.calls += 1`` is.
        used: names that it mentions for anything but an update or a store.
        makes_names: it names attributes at run time (``vars``, ``__dict__``, an f-string with ``getattr``).
        takes_weights: it asks a module for all its weights. (``next(module.parameters())`` asks for a dtype.)
    """

    names: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    anew: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()
    makes_names: bool = False
    takes_weights: bool = False

    def and_of(self, others: Iterable[Facts]) -> Facts:
        """These and those of others."""
        return Facts(*[functools.reduce(operator.or_, column) for column in zip(self, *others, strict=True)])


@functools.lru_cache(maxsize=8192)
def facts(code: types.CodeType) -> Facts:
    """The facts of a code object, with those of the functions that are written inside of it."""
    stored, anew, used, closed, formats = set(), set(), set(_words(code.co_consts)), set[str](), False
    steps = [step for step in dis.get_instructions(code) if step.opname not in _FILLERS]
    updates = {place: load for place in range(len(steps)) if (load := _updated(steps, place)) is not None}
    for place, step in enumerate(steps):
        formats = formats or step.opname in _FORMATS
        name = f":{step.argval}" if step.opname.endswith(("GLOBAL", "DEREF")) else str(step.argval)
        if step.opname == "STORE_DEREF" and step.argval in code.co_cellvars:
            continue  # a variable of this very call
        if step.opname in _STORES or place in updates:
            stored |= {name} if step.opname in _STORES else {str(steps[updates[place]].argval)}
            anew |= set() if place in updates else {name}
        elif step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_SUPER", "IMPORT")):
            used |= set() if place in updates.values() else {str(step.argval)}
        elif step.opname == "LOAD_DEREF" and place not in updates.values():
            closed.add(step.argval)
    mentioned = {*code.co_names, *used}
    makes_names = bool(mentioned & {"vars", "__dict__"}) or (formats and "getattr" in mentioned)
    takes_weights = bool(mentioned & _OF_ALL_WEIGHTS) and "next" not in mentioned
    used |= closed
    found = Facts(frozenset(mentioned), frozenset(stored), frozenset(anew), frozenset(used), makes_names, takes_weights)
    return found.and_of([facts(each) for each in code.co_consts if isinstance(each, types.CodeType)])


def _updated(steps: list[dis.Instruction], place: int) -> int | None:
    """Where the old value is loaded that an update ends with: ``x.n += …``, ``x.n = x.n + …``, ``x.n.append(…)``."""
    step, before = steps[place], steps[max(0, place - 7) : place]
    if step.opname in ("LOAD_METHOD", "LOAD_ATTR"):
        method = str(step.argval)
        is_update = method in _UPDATES or (method.endswith("_") and not method.startswith("_"))  # add_ of a tensor
        return place - 1 if is_update and before and before[-1].opname == "LOAD_ATTR" else None
    sums = [n for n, each in enumerate(before) if each.opname.startswith(("BINARY_OP", "BINARY_ADD", "INPLACE"))]
    if step.opname not in _STORES or not sums or sums[-1] < len(before) - 2:
        return None
    names = [n for n, each in enumerate(before[: sums[-1]]) if each.argval == step.argval]
    return None if not names else place - len(before) + names[-1]


def _words(constants: Iterable[Any]) -> Iterator[str]:
    for each in constants:
        if isinstance(each, str) and len(each) < _LONGEST:
            yield from [part for part in each.split(".") if part.isidentifier()]
        elif isinstance(each, (tuple, frozenset)):
            yield from _words(each)


@functools.lru_cache(maxsize=4096)
def facts_of_class(kind: type) -> Facts:
    """What the methods of a layer's class say."""
    bases = [base for base in kind.__mro__ if not base.__module__.startswith(("torch.nn", "builtins"))]
    members = [member for base in bases for name, member in vars(base).items() if name != "__init__"]
    return Facts().and_of([facts(function.__code__) for member in members for function in functions_of(member)])


def is_library(module: str | None) -> bool:
    """Whether code of a module is not read: its objects count by identity, and its modules by what they are."""
    name = module or ""
    return name.split(".")[0] in _LIBRARIES or name.startswith(_OF_DIFFUSERS)


class Code:
    """The code that one `encode_prompt` can reach by the names that it mentions. What is found stays found.

    Attributes:
        facts: what all of it says; those of an ``__init__``, which sets up what is new, without what it stores.
        names: all that it mentions.
        is_blind: code runs of which torch's hooks tell nothing, or weights are used without a run: every module counts
            as one that runs.
        places: of functions, globals and attributes of classes that are named: path, namespace, name and owner.
    """

    def __init__(self, pipeline: object, original: object) -> None:
        self.names: set[str] = {"encode_prompt"}
        self.facts, self.is_blind = Facts(), False
        self.places: dict[tuple[int, str], tuple[str, Mapping[str, Any], str, Any]] = {}
        self._kinds: dict[type, None] = {}
        self._functions: set[types.FunctionType] = set()
        self._done: set[str] = set()
        for kind in type(pipeline).__mro__[:-1]:
            if not kind.__module__.startswith("torch."):
                # A pipeline that is a module generates in its forward, as others do in their call.
                self._add_kind(kind, without=("__init__", "__call__", "__new__", "forward"))
        self.read(original)
        self.settle()

    def read(self, found: object) -> None:
        """Read a function, or the functions of a method, a property or a partial."""
        for function in functions_of(found):
            if function not in self._functions:
                self._functions.add(function)
                self._read(function)

    def read_class(self, kind: type) -> None:
        """Read the methods of the class of an object that is held, and of its bases."""
        for base in kind.__mro__[:-1]:
            if base not in self._kinds and not is_library(base.__module__):
                self._add_kind(base)

    def settle(self) -> None:
        """Look names that are new up on every class."""
        while len(self._done) != len(self.names):
            fresh = self.names - self._done
            self._done |= fresh
            for kind in list(self._kinds):
                for name in sorted(fresh & vars(kind).keys()):
                    self._add_member(kind, name)

    def _add_kind(self, kind: type, without: Iterable[str] = ()) -> None:
        self._kinds[kind] = None
        own = {
            name for name, found in vars(kind).items() if _is_special(name) and isinstance(found, types.FunctionType)
        }
        if issubclass(kind, nn.Module):
            own |= {"forward"} & vars(kind).keys()
        for name in sorted((own - {*without}) | (self._done & vars(kind).keys())):
            self._add_member(kind, name)

    def _add_member(self, kind: type, name: str) -> None:
        found = vars(kind)[name]
        if isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return  # a slot: the value is the object's
        if not _is_special(name) or isinstance(found, types.FunctionType):
            self._add_place(f"{kind.__qualname__}.{name}", vars(kind), name, kind)
            self.read(found)

    def _add_place(self, path: str, space: Mapping[str, Any], name: str, owner: object) -> None:
        self.places.setdefault((id(owner), name), (path, space, name, owner))

    def _read(self, function: types.FunctionType) -> None:
        compiled = getattr(function, "_torchdynamo_orig_callable", None)
        if compiled is not None:
            self.is_blind = True
            self.read(compiled)
        for cell in function.__closure__ or ():
            content = cell_content(cell)
            if isinstance(content, (types.FunctionType, types.MethodType, functools.partial)):
                self.read(content)
        if is_library(function.__globals__.get("__name__")):  # a decorator: what it wraps is in its closure
            return
        found = facts(function.__code__)
        self.names |= {name for name in found.names if not _is_special(name)}
        is_setup = function.__name__ == "__init__"
        self.facts = self.facts.and_of([found._replace(stored=frozenset(), anew=frozenset()) if is_setup else found])
        self.is_blind |= found.takes_weights
        self._globals(function.__globals__, found)

    def _globals(self, space: dict[str, Any], found: Facts) -> None:
        here = str(space.get("__name__"))
        for name in sorted(found.names & space.keys() | {each[1:] for each in found.stored if each.startswith(":")}):
            value = space.get(name)
            home = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None)
            if _is_special(name):
                continue
            if isinstance(value, types.ModuleType):
                if not is_library(home):
                    inner = found.names & vars(value).keys()
                    self._globals(vars(value), found._replace(names=frozenset(inner) - {name}, stored=frozenset()))
            elif isinstance(value, type):
                self.read_class(value)
            elif isinstance(value, types.BuiltinFunctionType):
                continue
            elif not isinstance(value, types.FunctionType) or not is_library(home):
                self._add_place(f"{here}:{name}", space, name, space)
                self.read(value)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
