"""The parts of a pipeline that the code of `encode_prompt` reads.

The denoiser does not touch the prompt: its update must not drop embeddings, and a hit has no time to look at it. Most
code names it all the same, for its dtype. So a list of names is not enough, and the use of each name counts.
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

# These say where the work runs. Placement is the cache's own matter.
_IGNORED = frozenset({"_execution_device", "device", "components", "__class__", "hf_device_map"})
_UPDATES = frozenset({"append", "extend", "add", "update", "inc"})
# Python before 3.13 cannot parse in two threads at once (gh-106905).
_PARSING = threading.Lock()


@dataclass(frozen=True)
class Reads:
    """Attributes that a call reads.

    Args:
        chains: what is read, as ``("unet", "dtype")``; ``("text_encoder",)`` is the whole attribute.
        written: attributes that the code itself changes, such as a call counter: not settings.
        echoes: pairs (attribute, parameter) of ``self.attribute = parameter``, which a hit repeats.
    """

    chains: frozenset[tuple[str, ...]]
    written: frozenset[str]
    echoes: frozenset[tuple[str, str]]


def reads_of(pipeline: Any, function: Callable[..., Any]) -> Reads | None:
    """Return the reads of ``function``; None where anything may be read.

    That is so if it is not a method of ``pipeline``, has no source, or hands ``self`` on.
    """
    method: Any = getattr(function, "__func__", None)
    if method is None or getattr(function, "__self__", None) is not pipeline:
        return None
    with _PARSING:
        return _reads_of_method(type(pipeline), method)  # type: ignore[arg-type]  # a class with a metaclass is hashable too


@functools.lru_cache(maxsize=128)
def _reads_of_method(cls: Any, method: Callable[..., Any]) -> Reads | None:
    scan = _Scan(cls)
    try:
        scan.follow(method)
        while scan.pending:
            name = scan.pending.pop()
            for base in cls.__mro__:  # each definition along the inheritance: any may be reached through super()
                found = getattr(base.__dict__.get(name), "__func__", base.__dict__.get(name))
                if inspect.isfunction(found):
                    scan.follow(found)
    except (OSError, TypeError, SyntaxError, _AnythingMayBeReadError):
        return None
    chains = {c for c in scan.chains if c[0] not in _IGNORED and c[-1] != "device"}
    parts_of_chains = {c for c in chains if len(c) > 1 and c[:1] in chains}
    return Reads(frozenset(chains - parts_of_chains), frozenset(scan.written), frozenset(scan.echoes))


class _AnythingMayBeReadError(Exception):
    """``self`` goes where the scan does not follow."""


class _Scan:
    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.chains: set[tuple[str, ...]] = set()
        self.written: set[str] = set()
        self.echoes: set[tuple[str, str]] = set()
        self.pending: set[str] = set()
        self._followed: set[str] = set()

    def follow(self, function: Callable[..., Any]) -> None:
        """Add what the source of ``function`` reads from its first argument."""
        definition = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
        if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
            raise _AnythingMayBeReadError
        this = next((argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)), None)
        parents = {child: node for node in ast.walk(definition) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(definition):
            is_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
            if is_super or (isinstance(node, ast.Name) and node.id == this):
                self._read(node, parents)

    def _read(self, node: Any, parents: dict[ast.AST, ast.AST]) -> None:
        outer, names = parents.get(node), []
        if not isinstance(outer, ast.Attribute):
            self._read_bare(node, outer)
            return
        while isinstance(outer, ast.Attribute):
            names.append(outer.attr)
            node, outer = outer, parents.get(outer)
        is_call = isinstance(outer, ast.Call) and outer.func is node
        is_item = isinstance(outer, ast.Subscript) and not isinstance(outer.ctx, ast.Load)
        if not isinstance(node.ctx, ast.Load) or is_item or (is_call and names[1:] and names[-1] in _UPDATES):
            self.written.add(names[0])
            if isinstance(outer, ast.Assign) and isinstance(outer.value, ast.Name) and not names[1:]:
                self.echoes.add((names[0], outer.value.id))
        elif not names[1:] and isinstance(outer, ast.Compare) and ast.unparse(outer.comparators[0]) == "None":
            self.chains.add((names[0], IS_NONE))
        elif not names[1:] or is_call:
            self._add(names[0])
        else:
            self.chains.add(tuple(names))

    def _read_bare(self, node: ast.AST, outer: ast.AST | None) -> None:
        """``isinstance(self, …)`` reads nothing, ``getattr(self, "name")`` one name; else ``self`` is handed on."""
        if isinstance(outer, ast.Call) and isinstance(outer.func, ast.Name) and outer.args[:1] == [node]:
            if outer.func.id in ("isinstance", "type"):
                return
            if outer.func.id in ("getattr", "hasattr") and isinstance(outer.args[1], ast.Constant):
                self._add(str(outer.args[1].value))
                return
        raise _AnythingMayBeReadError

    def _add(self, name: str) -> None:
        found = inspect.getattr_static(self._cls, name, None)
        if not (inspect.isfunction(found) or isinstance(found, (staticmethod, classmethod))):
            self.chains.add((name,))  # a property is read as the value it gives
        elif name not in self._followed:
            self._followed.add(name)
            self.pending.add(name)
