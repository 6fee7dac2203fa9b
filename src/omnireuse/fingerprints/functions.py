"""Functions, by their code."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from omnireuse.fingerprints.plain import digest_of

__all__ = ["cell_content", "code_digest", "functions_of"]


def functions_of(found: Any) -> Iterator[types.FunctionType]:
    """The functions of an attribute: of methods, properties, partials and decorators."""
    while isinstance(found, functools.partial):
        found = found.func
    for name in ("fget", "func", "__func__"):
        found = getattr(found, name, found) if not isinstance(found, nn.Module) else found
    if not isinstance(found, types.FunctionType):
        found = vars(found).get("__wrapped__") if hasattr(found, "__dict__") and not isinstance(found, type) else None
    while isinstance(found, (types.FunctionType, types.MethodType)):
        found = getattr(found, "__func__", found)
        yield found
        found = getattr(found, "__wrapped__", None)


def cell_content(cell: types.CellType) -> Any:
    """What a cell of a closure holds; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


@functools.lru_cache(maxsize=8192)
def _digest_of_code(code: types.CodeType) -> str:
    constants = [_digest_of_code(each) if isinstance(each, types.CodeType) else each for each in code.co_consts]
    return digest_of(repr((code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars)).encode()).hex()


def code_digest(function: types.FunctionType) -> str:
    """32 hex digits of what a function does, the same in every process of one version of Python."""
    return _digest_of_code(function.__code__)
