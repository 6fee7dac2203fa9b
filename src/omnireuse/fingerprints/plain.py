"""Plain values, by value: in words that are equal exactly when types and values are."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

__all__ = ["Frozen", "UnkeyableError", "digest_of", "freeze", "is_plain"]

Frozen = Any
"""None, a str, or a pair of a type and its spelling: hashable, and equal only to the same type and value."""

_MAX_CONTENT_BYTES = 64 << 20  # of one array or image
_LONG_TEXT = 1024
_MAX_NODES = 20_000
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, type(...)})
_PLAIN |= {torch.dtype, torch.device, torch.layout, torch.memory_format}


class UnkeyableError(Exception):
    """No fingerprint can be made. Never leaves the library.

    Args:
        reason: of a value: ``type`` (it has no content that can be read), ``float_tensor`` (most likely computed anew
            for every call), ``large_content`` (an array or image of more than 64 MiB) or ``large_key`` (more than
            20,000 values, or one within itself). Of what an object holds: ``uncounted`` (a weight that was made in
            inference mode, or is sparse), ``unchecked`` (an iterator or a random generator), ``large_state`` (more
            than 50,000 values).
        where: what was read.
    """

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason, self.where = reason, where
        super().__init__(reason)


def is_plain(value: object) -> bool:
    """Whether ``value`` is known by its type and its `repr`, and cannot change."""
    return type(value) in _PLAIN


def digest_of(*parts: bytes) -> bytes:
    """128-bit BLAKE2b over length-prefixed parts. Source: RFC 7693."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def freeze(value: object) -> Frozen:
    """The key part of one argument. Long texts and large containers become digests, so that a key stays small.

    Cost: linear in the size of ``value``; an integer tensor on an accelerator is copied to the host (one sync).
    """
    kind = type(value)
    if value is None or (kind is str and len(value) <= _LONG_TEXT):  # type: ignore[arg-type]  # kind is str
        return value
    if kind is bool or (kind is int and value.bit_length() < 64):  # type: ignore[attr-defined]  # kind is int
        return (kind, value)
    try:
        text = _spell(value, iter(range(_MAX_NODES)))
    except RecursionError:
        raise UnkeyableError("large_key") from None
    return (kind, text if len(text) <= _LONG_TEXT else digest_of(text.encode()))


def _spell(value: Any, nodes: Iterator[int]) -> str:
    """A text that no other type or value has.

    Args:
        nodes: as many as there may be values inside.
    """
    if next(nodes, None) is None:
        raise UnkeyableError("large_key")
    kind = type(value)
    if value is None or kind is bool or (kind is str and len(value) <= _LONG_TEXT):
        return repr(value)
    if kind is str:
        return _content("str", value.encode("utf-8", "surrogatepass"))
    if kind is int:
        return hex(value)  # the decimal form of a huge int is quadratic, and limited by the interpreter
    if kind is float:
        return f"float {value.hex()}"  # tells 0.0 from -0.0, and NaN equals NaN
    if kind is bytes:
        return _content("bytes", value)
    if kind in (torch.dtype, torch.device):
        return f"{kind.__name__} {value}"
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        is_nan = value.dtype.kind in "fc" and np.isnan(value)
        return f"numpy {value.dtype!r} {'nan' if is_nan else value.tobytes().hex()}"
    if kind is dict:  # equal dicts are equal whatever the order of insertion
        pairs = sorted(f"{_spell(name, nodes)}: {_spell(item, nodes)}" for name, item in value.items())
        return f"dict({', '.join(pairs)})"
    if kind in (list, tuple, torch.Size):
        return f"{kind.__name__}({', '.join([_spell(item, nodes) for item in value])})"
    return _spell_large(value, nodes)


def _spell_large(value: object, nodes: Iterator[int]) -> str:
    """A token tensor, an array or an image, by its content."""
    image = sys.modules.get("PIL.Image")
    if type(value) is torch.Tensor and value.device.type != "meta":
        is_whole = not (value.is_floating_point() or value.is_complex() or value.is_quantized)
        if value.layout is not torch.strided or not is_whole:
            raise UnkeyableError("float_tensor")
        _check_size(value.nbytes)
        array, place = value.detach().cpu().numpy(), str(value.device)
    elif type(value) is np.ndarray and not value.dtype.hasobject:
        _check_size(value.nbytes)
        array, place = value, ""
    elif image is not None and isinstance(value, image.Image):
        return _spell_image(value, nodes)
    else:
        raise UnkeyableError("type")
    about = f"{type(value).__name__} {place} {array.dtype!r} {array.shape}"
    return _content(about, np.ascontiguousarray(array).tobytes())


def _spell_image(image: Any, nodes: Iterator[int]) -> str:
    """An image with all that can be read from it: pixels, palette, EXIF and whatever its file said. An animation is
    left out, because its other frames are in its file."""
    _check_size(image.width * image.height * len(image.getbands()) * 4)
    if getattr(image, "n_frames", 1) != 1:
        raise UnkeyableError("type")
    pixels = image.tobytes()  # first: this loads the palette, too
    palette = image.palette and [image.palette.mode, bytes(image.palette.palette), image.getpalette("RGBA")]
    about = [type(image).__name__, image.mode, image.size, palette, image.getexif().tobytes(), image.info]
    return _content(_spell(about, nodes), pixels)


def _check_size(num_bytes: int) -> None:
    if num_bytes > _MAX_CONTENT_BYTES:
        raise UnkeyableError("large_content")


def _content(about: str, content: bytes) -> str:
    return f"{about} {digest_of(content).hex()}"
