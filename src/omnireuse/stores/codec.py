"""Values of tensors as bytes and back: safetensors for the numbers, JSON for the structure, a checksum over both.

Layout: magic ``ORV2``, BLAKE2b-128 of all that follows, header length (8 bytes, little endian), header (JSON: the key
and the structure), safetensors. No pickle: reading foreign bytes runs no code.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from omnireuse import messages
from omnireuse.errors import OmniReuseError, WrongTypeError

__all__ = ["CorruptValueError", "decode", "encode"]

_MAGIC = b"ORV2"
_HEAD = len(_MAGIC) + 16
_PLAIN = (type(None), bool, int, float, str)


class CorruptValueError(OmniReuseError, ValueError):
    """Bytes other than those stored under this key: truncated, changed, of another version or of another key."""


def encode(key: str, value: object) -> bytes:
    """Return ``value`` as bytes that name their ``key``."""
    tensors: dict[str, torch.Tensor] = {}
    header = json.dumps({"key": key, "value": _structure(value, tensors, {})}).encode()
    body = (len(header).to_bytes(8, "little"), header, save(tensors))
    return b"".join((_MAGIC, _checksum(*body), *body))  # one copy: values are large


def decode(key: str, data: bytes) -> Any:
    """Return the value that ``encode(key, value)`` gave ``data`` for, with its tensors on the CPU."""
    body = memoryview(data)[_HEAD:]
    if data[:4] != _MAGIC:
        raise CorruptValueError(f"value of {key}: not written by this version, or truncated")
    if _checksum(body) != data[4:_HEAD]:
        raise CorruptValueError(f"value of {key}: checksum differs")
    try:
        stop = 8 + int.from_bytes(body[:8], "little")
        header, rest = json.loads(bytes(body[8:stop])), bytes(body[stop:])
        if header["key"] != key:
            raise CorruptValueError(f"value of {key}: holds that of {header['key']}")
        return _value(header["value"], load(rest))
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, CorruptValueError):
            raise
        raise CorruptValueError(f"value of {key}: {error}") from error


def _checksum(*parts: bytes | memoryview) -> bytes:
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def _structure(value: Any, tensors: dict[str, torch.Tensor], names: dict[int, str]) -> Any:
    """Return the value with containers as {class name: content} and tensors, moved to ``tensors``, as their names."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided:
        if id(value) not in names:  # one that occurs twice is stored once
            names[id(value)] = str(len(names))
            tensors[names[id(value)]] = value.detach().cpu().contiguous()
        return {"tensor": names[id(value)]}
    if kind in (tuple, list):
        return {kind.__name__: [_structure(item, tensors, names) for item in value]}
    if kind is dict and all(type(name) is str for name in value):
        return {"dict": {name: _structure(item, tensors, names) for name, item in value.items()}}
    raise WrongTypeError(messages.VALUE_NOT_PLAIN, kind=kind.__qualname__)


def _value(structure: object, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(structure, dict):
        return structure
    ((kind, content),) = structure.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {name: _value(item, tensors) for name, item in content.items()}
    items = [_value(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
