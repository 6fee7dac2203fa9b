"""What `encode_prompt` reads of its pipeline, found in its source, so that a key can hold all of it and no more.

A pipeline has many parts that do not touch the prompt (the denoiser, the VAE): a weight update there must not drop
embeddings. The parts that do are those that ``encode_prompt``, and every method it reaches, read from ``self``.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["IS_NONE", "Reads", "reads_of"]

IS_NONE = "is None"
"""Ends a chain of which only the presence is read."""

# Where the work runs, not what it gives: placement is the cache's own matter.
_IGNORED = frozenset({"_execution_device", "device", "components", "__class__", "hf_device_map"})

# Python before 3.13 cannot parse in two threads at once ("AST constructor recursion depth mismatch", gh-106905).
_PARSING = threading.Lock()

_BOOKKEEPING = frozenset({"append", "extend", "add", "update", "inc"})


@dataclass(frozen=True, kw_only=True)
class Reads:
    """Attributes of the pipeline that a call depends on and sets.

    Args:
        objects: attributes used as a whole (called, passed on, or plain values).
        chains: attributes of which only a further attribute is read, as ``("unet", "dtype")``.
        stores: attributes that the call itself sets.
        echoes: pairs (attribute, parameter) of a plain ``self.attribute = parameter``: a hit repeats those.
        complete: False when the source is missing or ``self`` is handed on: then anything may be read.
    """

    objects: frozenset[str]
    chains: frozenset[tuple[str, ...]]
    stores: frozenset[str]
    echoes: frozenset[tuple[str, str]]
    complete: bool


def reads_of(pipeline: Any, function: Callable[..., Any]) -> Reads:
    """The reads of ``function``, a bound method of ``pipeline`` or a callable of its own."""
    method = getattr(function, "__func__", None)
    if method is None or getattr(function, "__self__", None) is not pipeline:
        nothing: frozenset[Any] = frozenset()
        return Reads(objects=nothing, chains=nothing, stores=nothing, echoes=nothing, complete=False)
    with _PARSING:
        return _reads_of_method(type(pipeline), method)  # type: ignore[arg-type]  # a class with a metaclass is hashable too


@functools.lru_cache(maxsize=128)
def _reads_of_method(cls: type[Any], method: Callable[..., Any]) -> Reads:
    scan = _Scan(cls)
    scan.follow(method)
    while scan.pending:
        scan.follow_name(scan.pending.pop())
    return Reads(
        objects=frozenset(scan.objects - _IGNORED),
        chains=frozenset(c for c in scan.chains if c[0] not in scan.objects | _IGNORED and c[-1] != "device"),
        stores=frozenset(scan.stores),
        echoes=frozenset(scan.echoes),
        complete=scan.complete,
    )


def _compares_with_none(node: ast.AST | None) -> bool:
    """``self.unet is not None`` asks whether there is one, not what is in it."""
    return (
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], (ast.Is, ast.IsNot))
        and isinstance(node.comparators[0], ast.Constant)
        and node.comparators[0].value is None
    )


class _Scan:
    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.objects: set[str] = set()
        self.chains: set[tuple[str, ...]] = set()
        self.stores: set[str] = set()
        self.echoes: set[tuple[str, str]] = set()
        self.pending: set[str] = set()
        self.seen: set[str] = set()
        self.complete = True

    def follow_name(self, name: str) -> None:
        # Every definition along the inheritance, because any may be reached through super().
        self.seen.add(name)
        for base in self.cls.__mro__:
            found = base.__dict__.get(name)
            if isinstance(found, classmethod):
                found = found.__func__
            if inspect.isfunction(found):
                self.follow(found)

    def follow(self, function: Callable[..., Any]) -> None:
        function = inspect.unwrap(function)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            self.complete = False
            return
        definition = tree.body[0]
        if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.complete = False
            return
        arguments = definition.args.posonlyargs + definition.args.args
        if arguments:
            self._read(definition, arguments[0].arg)

    def _read(self, definition: ast.AST, this: str) -> None:
        parents = {child: node for node in ast.walk(definition) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(definition):
            if not (isinstance(node, ast.Name) and node.id == this):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
                    outer = parents.get(node)
                    if isinstance(outer, ast.Attribute):
                        self._add(outer.attr)
                continue
            outer = parents[node]
            if isinstance(outer, ast.Attribute):
                self._read_chain(outer, parents)
            elif not self._is_harmless(outer, node):
                self.complete = False

    def _read_chain(self, node: ast.Attribute, parents: dict[ast.AST, ast.AST]) -> None:
        names = [node.attr]
        if isinstance(node.ctx, ast.Store):
            self.stores.add(node.attr)
            parent = parents[node]
            if isinstance(parent, ast.Assign) and isinstance(parent.value, ast.Name):
                self.echoes.add((node.attr, parent.value.id))
            return
        outer = parents.get(node)
        while isinstance(outer, ast.Attribute):
            names.append(outer.attr)
            node, outer = outer, parents.get(outer)
        is_call = isinstance(outer, ast.Call) and outer.func is node
        if isinstance(node.ctx, ast.Store) or (is_call and len(names) == 2 and names[1] in _BOOKKEEPING):
            return  # self.counter.calls += 1, self.log.append(prompt): the call's own bookkeeping
        if len(names) == 1 and _compares_with_none(outer):
            self.chains.add((names[0], IS_NONE))
        elif len(names) == 1 or is_call:
            self._add(names[0])
        else:
            self.chains.add(tuple(names))

    def _is_harmless(self, outer: ast.AST, node: ast.AST) -> bool:
        """isinstance(self, …), and getattr or hasattr of a literal name."""
        if not (isinstance(outer, ast.Call) and isinstance(outer.func, ast.Name) and outer.args[0] is node):
            return False
        if outer.func.id in ("isinstance", "type"):
            return True
        if outer.func.id in ("getattr", "hasattr") and isinstance(outer.args[1], ast.Constant):
            self._add(str(outer.args[1].value))
            return True
        return False

    def _add(self, name: str) -> None:
        found = inspect.getattr_static(self.cls, name, None)
        if inspect.isfunction(found) or isinstance(found, (staticmethod, classmethod)):
            if name not in self.seen:
                self.pending.add(name)
        else:
            self.objects.add(name)  # a property is read as the value it gives
