"""Values of tensors as bytes and back: safetensors for the numbers, JSON for the structure, a checksum over both.

Layout: magic ``ORV1``, BLAKE2b-128 of all that follows, header length (8 bytes, little endian), header (JSON: the key
and the structure), safetensors. No pickle: reading foreign bytes runs no code.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from omnireuse.core.stores.trees import Leaf, Node, flatten, unflatten
from omnireuse.errors import OmniReuseError, WrongTypeError

__all__ = ["CorruptValueError", "decode", "encode"]

_MAGIC = b"ORV1"
_HEAD = len(_MAGIC) + 16 + 8
_KINDS: dict[str, type] = {"tuple": tuple, "list": list, "dict": dict}
_PLAIN = (type(None), bool, int, float, str)


class CorruptValueError(OmniReuseError, ValueError):
    """Bytes that are not what was stored under this key: truncated, changed, of another version or of another key."""


def encode(key: str, value: object) -> bytes:
    """``value`` as bytes that name their ``key``.

    Raises:
        WrongTypeError: ``value`` holds more than tensors, plain values, tuples, lists and dicts with text keys.
    """
    skeleton, leaves = flatten(value)
    tensors: dict[str, torch.Tensor] = {}
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            raise WrongTypeError("value: must hold tensors only to leave the process, got a numpy array")
        tensors[str(i)] = leaf.detach().cpu().contiguous()
    header = json.dumps({"key": key, "value": _write(skeleton)}).encode()
    body = len(header).to_bytes(8, "little") + header + save(tensors)
    return _MAGIC + _checksum(body) + body


def decode(key: str, data: bytes) -> Any:
    """The value that ``encode(key, value)`` gave ``data`` for, with its tensors on the CPU.

    Raises:
        CorruptValueError: ``data`` is anything else.
    """
    if len(data) < _HEAD or data[:4] != _MAGIC:
        raise CorruptValueError(f"value of {key}: not written by this version, or truncated")
    body = data[20:]
    if _checksum(body) != data[4:20]:
        raise CorruptValueError(f"value of {key}: checksum differs")
    length = int.from_bytes(body[:8], "little")
    try:
        header = json.loads(body[8 : 8 + length])
        if header["key"] != key:
            raise CorruptValueError(f"value of {key}: holds that of {header['key']}")
        tensors = load(body[8 + length :])
        leaves = [tensors[str(i)] for i in range(len(tensors))]
        return unflatten(_read(header["value"]), leaves)
    except (ValueError, KeyError, IndexError, TypeError, SafetensorError) as error:
        if isinstance(error, CorruptValueError):
            raise
        raise CorruptValueError(f"value of {key}: {error}") from error


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _write(skeleton: Any) -> Any:
    if isinstance(skeleton, Leaf):
        return {"leaf": skeleton.index}
    if isinstance(skeleton, Node):
        kind = skeleton.kind.__name__
        if _KINDS.get(kind) is not skeleton.kind or not all(isinstance(n, str) for n in skeleton.names or ()):
            raise WrongTypeError(f"value: must be made of tuples, lists and dicts with text keys, got {kind}")
        children = [_write(child) for child in skeleton.children]
        return {"kind": kind, "names": skeleton.names, "children": children}
    if type(skeleton) in _PLAIN:
        return {"plain": skeleton}
    raise WrongTypeError(f"value: a {type(skeleton).__name__} cannot leave the process")


def _read(written: Any) -> Any:
    if "leaf" in written:
        return Leaf(int(written["leaf"]))
    if "plain" in written:
        return written["plain"]
    names = None if written["names"] is None else tuple(written["names"])
    return Node(_KINDS[written["kind"]], names, tuple(_read(child) for child in written["children"]))
