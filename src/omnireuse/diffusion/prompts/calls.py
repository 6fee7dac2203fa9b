"""Read a call the way its function would: positional and keyword spellings meet, defaults are filled in."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["CallReader"]

_SIMPLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class CallReader:
    """The parameters of one function. ``bind`` is several times faster than ``inspect.Signature.bind``, which it
    falls back to for anything unusual.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters.values()
        self._is_simple = all(p.kind in _SIMPLE for p in parameters)
        self._positional = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        self._defaults = {p.name: p.default for p in parameters}
        self._required = [p.name for p in parameters if p.default is inspect.Parameter.empty]

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument by name, in the order of the signature; surplus keyword arguments by their own names.

        Raises:
            TypeError: the arguments do not fit the signature.
        """
        if self._is_simple and len(args) <= len(self._positional):
            bound = self._defaults.copy()
            bound.update(kwargs)
            if len(bound) == len(self._defaults):
                given = self._positional[: len(args)]
                if not any(name in kwargs for name in given):
                    bound.update(zip(given, args, strict=True))
                    if all(bound[name] is not inspect.Parameter.empty for name in self._required):
                        return bound
        full = self.signature.bind(*args, **kwargs)
        full.apply_defaults()
        bound = dict(full.arguments)
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                bound |= {f"**{name}": value for name, value in sorted(bound.pop(parameter.name).items())}
        return bound

    def rebuild(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inverse of :meth:`bind`: arguments that give ``bound`` again."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self.signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(bound[parameter.name])
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = bound[parameter.name]
            elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                args.append(bound[parameter.name])
        kwargs |= {name[2:]: value for name, value in bound.items() if name.startswith("**")}
        return tuple(args), kwargs
