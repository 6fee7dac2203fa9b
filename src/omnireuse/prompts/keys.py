"""Keys of calls: equal exactly when types and values are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable
from typing import Any

import torch

from omnireuse.fingerprints.plain import UnkeyableError, freeze
from omnireuse.pipelines.snapshot import autocast_state

__all__ = ["Arguments", "PromptKey", "as_key"]

_EMBEDS = re.compile(r"_embeds(_|$)")
_DEVICES = (str, int, torch.device)


class PromptKey(tuple[Any, ...]):
    """A key that is already frozen: the state of what the encoding reads, the device of the result, then the arguments.

    The state is None for keys of :meth:`PromptEmbedCache.put`, which have no device.
    """

    __slots__ = ()

    @property
    def target(self) -> torch.device | None:
        """The device that the call wants its tensors on."""
        return self[1]  # type: ignore[no-any-return]  # by construction


def as_key(key: Hashable) -> PromptKey:
    """``key`` told apart by type as well as value; an object with its own equality stays as it is."""
    if type(key) is PromptKey:
        return key
    try:
        return PromptKey((None, None, freeze(key)))
    except UnkeyableError:
        return PromptKey((None, None, type(key), key))


def _is_embeds_name(name: str) -> bool:
    """Whether an argument of this name carries ready embeddings or their mask."""
    return _EMBEDS.search(name) is not None


class Arguments:
    """The arguments of one function, by name with defaults applied."""

    def __init__(self, function: Any) -> None:
        self.signature = inspect.signature(function)
        self._bind = _binder(self.signature)
        parameters = self.signature.parameters
        self._embeds = frozenset(filter(_is_embeds_name, parameters))
        self._surplus = next((name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)

    def key(self, pipeline: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PromptKey:
        """The key of a call but for its state, which is None: the device that it wants its tensors on, its arguments,
        and torch's settings of this thread.

        Raises:
            TypeError: the function refuses the arguments.
            UnkeyableError: no key can be made of them.
        """
        bound = self._bind(*args, **kwargs)
        ambient = autocast_state(), str(torch.get_default_dtype()), torch.get_float32_matmul_precision()
        parts: list[Any] = [None, _target(pipeline, bound), ambient]
        for name, value in bound.items():
            if value is None or (name == "device" and type(value) in _DEVICES):
                parts.append(None)
            elif name in self._embeds or (name == self._surplus and _has_embeds(value)):
                raise UnkeyableError("embeds")
            else:
                parts.append(freeze(value))
        return PromptKey(parts)


def _target(pipeline: Any, bound: dict[str, Any]) -> torch.device | None:
    """The device for this call's tensors: its ``device``, else the pipeline's; None for its encoder's."""
    device = bound.get("device")
    if device is None and "device" in bound:
        device = getattr(pipeline, "_execution_device", None)
    return device if device is None or type(device) is torch.device else torch.device(device)


def _has_embeds(surplus: dict[str, Any]) -> bool:
    return any(value is not None and _is_embeds_name(name) for name, value in surplus.items())


def _binder(signature: inspect.Signature) -> Callable[..., dict[str, Any]]:
    """A function of this signature that returns its arguments by name: much faster than ``Signature.bind``."""
    parameters = signature.parameters.values()
    plain = [p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else None) for p in parameters]
    space: dict[str, Any] = {}
    exec(f"def bind{inspect.Signature(plain)}: return locals()", space)
    bind = space["bind"]
    given = [p for p in parameters if p.default is not p.empty]
    bind.__defaults__ = tuple(p.default for p in given if p.kind is not p.KEYWORD_ONLY)
    bind.__kwdefaults__ = {p.name: p.default for p in given if p.kind is p.KEYWORD_ONLY}
    return bind  # type: ignore[no-any-return]  # the function just made
