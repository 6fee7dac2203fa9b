"""Turn the arguments of a call into a key that is equal exactly when types and values are."""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from omnireuse.errors import ConfigError

__all__ = [
    "BYPASS_REASONS",
    "Frozen",
    "KeyRules",
    "PromptKey",
    "UnkeyableError",
    "as_key",
    "digest_of",
    "freeze",
    "is_embeds_name",
]

Frozen = Any
"""None, a str, or a tuple whose first element names the type: hashable, and equal only to the same type and value."""

BYPASS_REASONS = (
    "embeds",  # the caller brought embeddings: there is nothing to encode
    "type",  # an argument of a type that no key can be made of
    "recursive",  # an argument that contains itself
    "nan",  # a NaN where the rules say bypass
    "float_tensor",  # a float tensor: most likely the result of a computation, new in every call
    "large_content",  # an array or image above max_content_bytes
    "large_key",  # more than 20,000 nested values
    "signature",  # arguments that encode_prompt itself refuses
    "training",  # a watched encoder is in training mode: dropout makes every result another
    "result",  # encode_prompt returned something that cannot be stored, such as a generator
)

_LONG_TEXT = 1024
_MAX_NODES = 20_000
_EMBEDS = re.compile(r"_embeds(_|$)")


class UnkeyableError(Exception):
    """No key can be made; ``reason`` is one of :data:`BYPASS_REASONS`. Never leaves the cache."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, kw_only=True)
class KeyRules:
    """How arguments become keys.

    Args:
        nan: ``equal`` (every NaN is the same value, so NaN cannot fill the cache) or ``bypass``.
        max_content_bytes: largest array or image that is hashed; a larger one bypasses.
    """

    nan: str = "equal"
    max_content_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if self.nan not in ("equal", "bypass"):
            raise ConfigError(f"KeyRules(nan={self.nan!r}): field must be 'equal' or 'bypass', got {self.nan!r}")
        if self.max_content_bytes < 0:
            raise ConfigError(
                f"KeyRules(max_content_bytes={self.max_content_bytes}): field must be at least 0, "
                f"got {self.max_content_bytes}; 0 lets every array and image bypass"
            )


_DEFAULT_RULES = KeyRules()


class PromptKey(tuple[Any, ...]):
    """A key that is already frozen: equal only to keys of the same types and values. Its first element is the state."""

    __slots__ = ()


def as_key(key: Hashable) -> PromptKey:
    """``key`` told apart by type as well as value; an object with its own equality stays as it is."""
    if type(key) is PromptKey:
        return key
    try:
        return PromptKey((None, freeze(key, _DEFAULT_RULES)))
    except UnkeyableError:
        return PromptKey((None, type(key), key))


def is_embeds_name(name: str) -> bool:
    """Whether an argument of this name carries ready embeddings or their mask."""
    return _EMBEDS.search(name) is not None


def digest_of(*parts: bytes) -> bytes:
    """128-bit BLAKE2b over length-prefixed parts. Source: RFC 7693."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def freeze(value: object, rules: KeyRules) -> Frozen:
    """The key part of one argument. Long texts and large containers become digests, so a key stays small.

    Raises:
        UnkeyableError: with the reason, when ``value`` has no key.

    Cost: linear in the size of ``value``; an integer tensor on an accelerator is copied to the host (one sync).
    """
    kind = type(value)
    if kind is str and len(value) <= _LONG_TEXT:  # type: ignore[arg-type]  # kind is str
        return value
    if value is None:
        return None
    walk = _Walk(rules)
    frozen = walk.freeze(value)
    if walk.num_chars > _LONG_TEXT and kind is not str:
        return ("digest", kind, digest_of(repr(frozen).encode()))
    return frozen


class _Walk:
    """One freeze: the containers on the way to the current value, and how much was seen."""

    def __init__(self, rules: KeyRules) -> None:
        self.rules = rules
        self.path: set[int] = set()
        self.num_nodes = self.num_chars = 0

    def freeze(self, value: Any) -> Frozen:
        self.num_nodes += 1
        if self.num_nodes > _MAX_NODES:
            raise UnkeyableError("large_key")
        if value is None:
            return None
        kind = type(value)
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, value)
        if isinstance(value, np.generic):
            return self._numpy_scalar(value)
        image = sys.modules.get("PIL.Image")
        if image is not None and isinstance(value, image.Image):
            return self._image(value)
        raise UnkeyableError("type")

    def text(self, value: str) -> Frozen:
        self.num_chars += len(value)
        if len(value) <= _LONG_TEXT:
            return value
        return ("text", len(value), digest_of(value.encode("utf-8", "surrogatepass")))

    def integer(self, value: int) -> Frozen:
        # Text of a huge int is quadratic and limited by the interpreter; its hex form is neither.
        return (int, value) if value.bit_length() < 1024 else (int, hex(value))

    def real(self, value: float) -> Frozen:
        if math.isnan(value) and self.rules.nan == "bypass":
            raise UnkeyableError("nan")
        return (float, value.hex())  # the only spelling that tells 0.0 from -0.0 and makes NaN equal to NaN

    def sequence(self, value: list[Any] | tuple[Any, ...]) -> Frozen:
        self._enter(value)
        frozen = (type(value), *map(self.freeze, value))
        self.path.discard(id(value))
        return frozen

    def mapping(self, value: dict[Any, Any]) -> Frozen:
        self._enter(value)
        # Equal dicts are equal whatever the order of insertion.
        items = sorted(((self.freeze(k), self.freeze(v)) for k, v in value.items()), key=lambda item: repr(item[0]))
        self.path.discard(id(value))
        return (dict, *items)

    def tensor(self, value: torch.Tensor) -> Frozen:
        if value.layout is not torch.strided or value.is_floating_point() or value.is_complex() or value.is_quantized:
            raise UnkeyableError("float_tensor")
        self._check_content(value.nbytes)
        if value.device.type == "meta":
            raise UnkeyableError("type")
        return self._array_key("tensor", value.detach().cpu().numpy())

    def array(self, value: np.ndarray[Any, Any]) -> Frozen:
        if value.dtype.hasobject:
            raise UnkeyableError("type")
        self._check_content(value.nbytes)
        return self._array_key("ndarray", value)

    def _array_key(self, name: str, array: np.ndarray[Any, Any]) -> Frozen:
        if self.rules.nan == "bypass" and array.dtype.kind in "fc" and np.isnan(array).any():
            raise UnkeyableError("nan")
        return (name, array.dtype.str, array.shape, digest_of(np.ascontiguousarray(array).tobytes()))

    def _numpy_scalar(self, value: np.generic) -> Frozen:
        if value.dtype.hasobject:
            raise UnkeyableError("type")
        if value.dtype.kind in "fc" and np.isnan(value):
            if self.rules.nan == "bypass":
                raise UnkeyableError("nan")
            return ("numpy", value.dtype.str, "nan")  # one NaN, whatever its payload
        return ("numpy", value.dtype.str, value.tobytes())

    def _image(self, value: Any) -> Frozen:
        self._check_content(value.width * value.height * len(value.getbands()) * 4)
        palette = value.getpalette() if value.mode in ("P", "PA") else None
        parts = (value.tobytes(), repr(palette).encode(), repr(value.info.get("transparency")).encode())
        return ("image", value.mode, value.size, digest_of(*parts))

    def _check_content(self, num_bytes: int) -> None:
        if num_bytes > self.rules.max_content_bytes:
            raise UnkeyableError("large_content")

    def _enter(self, value: object) -> None:
        if id(value) in self.path or len(self.path) >= 100:
            raise UnkeyableError("recursive")
        self.path.add(id(value))
        self.num_chars += 16


_HANDLERS: dict[type, Callable[[_Walk, Any], Frozen]] = {
    str: _Walk.text,
    bool: lambda _walk, value: (bool, value),
    int: _Walk.integer,
    float: _Walk.real,
    bytes: lambda _walk, value: (bytes, digest_of(value) if len(value) > _LONG_TEXT else value),
    list: _Walk.sequence,
    tuple: _Walk.sequence,
    torch.Size: _Walk.sequence,
    dict: _Walk.mapping,
    torch.Tensor: _Walk.tensor,
    np.ndarray: _Walk.array,
    torch.dtype: lambda _walk, value: ("dtype", str(value)),
    torch.device: lambda _walk, value: ("device", value.type, value.index),
}
