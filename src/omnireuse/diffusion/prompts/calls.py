"""How one pipeline's `encode_prompt` is called: its arguments by name, what it reads, where its tensors go."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from omnireuse.diffusion.prompts.keys import is_embeds_name
from omnireuse.diffusion.prompts.options import PromptCacheOptions
from omnireuse.diffusion.prompts.outside import Outside
from omnireuse.diffusion.prompts.reads import reads_of
from omnireuse.diffusion.prompts.rows import RowBook
from omnireuse.diffusion.prompts.watch import EncoderWatch

__all__ = ["ABSENT", "Call", "CallReader", "resolve"]

logger = logging.getLogger("omnireuse")

_SIMPLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

ABSENT: Any = type("_Absent", (), {"__reduce__": lambda _self: "ABSENT", "__deepcopy__": lambda self, _memo: self})()
"""No ``encode_prompt`` of the instance's own: the class's one is in charge."""


class CallReader:
    """Reads a call the way its function would: positional and keyword spellings meet, defaults are filled in.

    ``bind`` is several times faster than ``inspect.Signature.bind``, which it falls back to for anything unusual.
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


class Call:
    """One ``encode_prompt`` function of one pipeline: how to read its arguments and what it depends on."""

    def __init__(self, pipeline: object, original: Any, options: PromptCacheOptions, tag: str | None) -> None:
        function = resolve(pipeline, original)
        self._target = getattr(function, "__func__", function)
        self._ref = weakref.ref(pipeline)
        self._own = None if original is ABSENT else original
        self.reader = CallReader(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self.is_embeds = {name: is_embeds_name(name) for name in self.reader.signature.parameters}
        reads = reads_of(pipeline, function)
        if not reads.complete:
            logger.info(
                "encode_prompt of %s cannot be read in full: all its parts are watched", type(pipeline).__name__
            )
        parameters = self.reader.signature.parameters
        self.echoes = sorted(echo for echo in reads.echoes if echo[1] in parameters)
        self.num_lessons = 2  # encodes that may show which settings encode_prompt changes itself
        self.rows = RowBook()
        self.goes_by_rows = options.rows == "proven" and not self.is_async
        self.outside = None if options.outside is None else Outside(options.outside, tag)
        self.watch = EncoderWatch(reads, weights=options.weights)

    @property
    def function(self) -> Callable[..., Any]:
        """The bound function; not kept, because a bound method keeps its pipeline alive."""
        if self._own is not None:
            return self._own  # type: ignore[no-any-return]  # whatever the user had put there
        return resolve(self._ref(), ABSENT)

    def target(self, pipeline: Any, bound: dict[str, Any]) -> torch.device | None:
        """Where this call wants its tensors: its ``device``, else where the pipeline runs or its first encoder is.

        Raises:
            RuntimeError: ``device`` names none.
        """
        device = bound.get("device")
        if type(device) is torch.device:
            return device
        if device is None:
            device = getattr(pipeline, "_execution_device", None) if "device" in self.is_embeds else None
        return self.watch.device() if device is None else torch.device(device)

    def is_for(self, pipeline: object, original: Any) -> bool:
        """Whether the pipeline's ``encode_prompt`` is still the one that was read."""
        if original is not ABSENT:
            return True
        return getattr(type(pipeline), "encode_prompt", None) is self._target


def resolve(pipeline: Any, original: Any) -> Callable[..., Any]:
    """The function to call: the instance's own, or its class's bound to it."""
    if original is not ABSENT:
        return original  # type: ignore[no-any-return]  # whatever the user had put there
    bound: Any = inspect.getattr_static(type(pipeline), "encode_prompt")
    return bound.__get__(pipeline, type(pipeline)) if hasattr(bound, "__get__") else bound  # type: ignore[no-any-return]  # callable: checked at installation
