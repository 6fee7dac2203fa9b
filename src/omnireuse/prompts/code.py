"""The code that a call of `encode_prompt` ran on its pipeline, and the statements of it that only keep count."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import textwrap
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

from omnireuse.prompts.keys import digest_of, is_plain

__all__ = ["Code", "code_digest", "counted_at"]

_ABSENT = object()
_UPDATES = frozenset({"append", "extend", "add", "update", "inc"})
# Python before 3.13 cannot parse in two threads at once (gh-106905).
_PARSING = threading.Lock()


class Code:
    """Functions of a pipeline's classes, and the plain globals that they read.

    Args:
        pipeline: of which class.
        names: methods that were looked up. Whatever they name in turn, as with ``super()``, counts as well.

    Attributes:
        here: digest by identity and by value.
        there: digest of the code and the values, for other processes of the same Python.
    """

    def __init__(self, pipeline: object, names: Iterable[str]) -> None:
        self._functions: list[tuple[Any, str, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        classes, pending, done = type(pipeline).__mro__[:-1], list(names), set()
        texts = []
        while pending:
            name = pending.pop()
            if name in done or name.startswith("__"):
                continue
            done.add(name)
            for kind in classes:
                found = vars(kind).get(name)
                for function in _functions_of(found):
                    self._functions.append((kind, name, found))
                    texts.append(f"{kind.__qualname__}.{name} {code_digest(function)}")
                    for code in _codes(function.__code__):
                        pending += code.co_names
                        self._globals += [
                            (function.__globals__, each, value)
                            for each in {*code.co_names} - _assigned(code)
                            if is_plain(value := function.__globals__.get(each, _ABSENT))
                        ]
        texts += [f"{name}={value!r}" for _, name, value in self._globals]
        self.there = digest_of("\n".join(texts).encode())
        self.here = digest_of(self.there, repr([id(function) for _, _, function in self._functions]).encode())

    def holds(self) -> bool:
        """Whether no function was replaced, and no global has another value."""
        for kind, name, function in self._functions:
            if vars(kind).get(name) is not function:
                return False
        for space, name, value in self._globals:
            now = space.get(name, _ABSENT)
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


def _assigned(code: types.CodeType) -> set[str]:
    """Globals that the code itself assigns: they are its own counters."""
    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL"}


def code_digest(function: types.FunctionType) -> str:
    """32 hex digits of what a function does, the same in every process of one version of Python."""
    parts = []
    for code in _codes(function.__code__):
        constants = [each for each in code.co_consts if not isinstance(each, types.CodeType)]
        parts.append(repr((code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars)).encode())
    return digest_of(*parts).hex()


@functools.lru_cache(maxsize=1024)
def counted_at(code: types.CodeType) -> dict[int, str]:
    """Lines with one statement that only updates an attribute of the first argument, with the attribute's name.

    ``self.calls += 1`` and ``self.prompts.append(prompt)`` are such statements. What they read goes into that attribute
    and nowhere else, so it is no input of the result. Without source there are none.
    """
    try:
        with _PARSING:
            definition = ast.parse(textwrap.dedent("".join(inspect.getsourcelines(code)[0]))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)) or not code.co_argcount:
        return {}
    this, first = code.co_varnames[0], code.co_firstlineno - min([definition.lineno, *_decorated(definition)])
    statements = [node for node in ast.walk(definition) if isinstance(node, ast.stmt)]
    counted: dict[int, str] = {}
    for node in statements:
        name = _counter_of(node, this)
        if name is not None:
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            others = [each for each in statements if each is not node and not hasattr(each, "body")]
            if not any(each.lineno <= lines[-1] and lines[0] <= (each.end_lineno or 0) for each in others):
                counted |= {line + first: name for line in lines}
    return counted


def _decorated(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> list[int]:
    return [decorator.lineno for decorator in definition.decorator_list]


def _counter_of(node: ast.stmt, this: str) -> str | None:
    """The attribute that a statement updates and does nothing else."""
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _UPDATES:
        target: ast.expr = call.func.value
        rest: list[ast.AST] = [*call.args, *call.keywords]
    elif isinstance(node, ast.AugAssign):
        target, rest = node.target, [node.value]
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target, rest = node.targets[0], [node.value]
    else:
        return None
    if isinstance(target, ast.Subscript):
        rest.append(target.slice)
        target = target.value
    if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == this):
        return None
    for each in rest:
        for inner in ast.walk(each):
            is_call = isinstance(inner, ast.Call)
            if isinstance(inner, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
                return None
            if is_call and not (isinstance(inner.func, ast.Name) and inner.func.id in ("len", "list", "str", "tuple")):
                return None
    return target.attr
