"""The code that a call of `encode_prompt` ran on its pipeline, and the lines of it that only keep count."""

from __future__ import annotations

import dis
import functools
import linecache
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omnireuse.prompts.keys import digest_of, is_plain

__all__ = ["Code", "code_digest", "counted_at"]

_ASSIGNMENTS = ("STORE_GLOBAL", "STORE_ATTR")


class Code:
    """Functions of a pipeline's classes, and the plain globals and attributes of classes that they name.

    Args:
        names: methods that were looked up. Whatever their code names in turn counts as well, as with ``super()``.

    Attributes:
        here: digest of what they are.
        there: the same for other processes of one version of Python.
    """

    def __init__(self, pipeline: object, names: Iterable[str]) -> None:
        self._functions: list[tuple[type, str, Any]] = []
        self._globals: list[tuple[Mapping[str, Any], str, Any]] = []
        texts, pending, done, assigned = [], [*names], set(), set()
        while pending:
            if (name := pending.pop()) in done or name.startswith("__"):
                continue
            done.add(name)
            for kind in type(pipeline).__mro__[:-1]:
                found = vars(kind).get(name, self)
                self._globals += [(vars(kind), name, found)] if is_plain(found) else []
                for function in _functions_of(found):
                    self._functions.append((kind, name, found))
                    texts.append(f"{kind.__qualname__}.{name} {code_digest(function)}")
                    space = function.__globals__
                    for code in _codes(function.__code__):
                        pending += code.co_names
                        read = [each for each in code.co_names if is_plain(space.get(each, self))]
                        self._globals += [(space, each, space[each]) for each in read]
                        assigned |= {step.argval for step in dis.get_instructions(code) if step.opname in _ASSIGNMENTS}
        # What the code assigns itself is a counter, or an attribute of the pipeline, which is noted when looked up.
        self._globals = [each for each in self._globals if each[1] not in assigned]
        texts += sorted({f"{name}={value!r}" for _, name, value in self._globals})
        self.there = digest_of("\n".join(texts).encode())
        self.here = digest_of(self.there, repr([id(found) for _, _, found in self._functions]).encode())

    def holds(self) -> bool:
        """Whether no function was replaced, and no global has another value."""
        for kind, name, function in self._functions:
            if vars(kind).get(name) is not function:
                return False
        for space, name, value in self._globals:
            now = space.get(name)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        return True


def _functions_of(found: Any) -> Iterator[types.FunctionType]:
    """The functions of an attribute of a class: of methods, properties and decorators."""
    found = getattr(found, "fget", getattr(found, "__func__", found))
    while isinstance(found, types.FunctionType):
        yield found
        found = getattr(found, "__wrapped__", None)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def code_digest(function: types.FunctionType) -> str:
    """32 hex digits of what a function does, the same in every process of one version of Python."""
    parts = []
    for code in _codes(function.__code__):
        constants = [each for each in code.co_consts if not isinstance(each, types.CodeType)]
        parts.append(repr((code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars)).encode())
    return digest_of(*parts).hex()


@functools.lru_cache(maxsize=4096)
def counted_at(code: types.CodeType, line: int) -> str | None:
    """The attribute that this line only updates, as ``self.calls += 1`` and ``self.prompts.append(prompt)`` do.

    What such a line reads goes into that attribute and nowhere else, so it is no input of the result.
    """
    text = linecache.getline(code.co_filename, line).strip()
    this = re.escape(code.co_varnames[0]) if code.co_argcount else "self"
    update = re.match(rf"{this}\.(\w+)(\[[^\]=]*\])?( *[-+]= |\.(append|extend|add|update)\(| = )", text)
    if update is None or ";" in text or " = " in text[update.end() :] or ":=" in text:
        return None
    name, rest = update[1], text[update.end() :]
    if update[3] == " = ":  # only what updates itself, without a call that could hand it on
        is_own = re.fullmatch(rf"(len\({this}\.{name}\)|{this}\.{name} *[-+] *\w+)", rest)
        return name if is_own else None
    return None if re.search(rf"{this}\.{name}\b", rest) else name
