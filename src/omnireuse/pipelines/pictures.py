"""From what a pipeline's call returns to arrays, and how close these are to a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse import messages
from omnireuse.errors import ConfigError

__all__ = ["IDENTICAL_DB", "Picture", "as_floats", "capped_psnr", "pictures_of", "psnr"]


Picture = NDArray[Any]
"""An image (height, width, 1 or 3) or a clip (frames, height, width, 1 or 3), floats in 0…1."""

NAMES = ("images", "frames", "videos", "image", "video")
"""The fields that hold pictures in results of diffusers' pipelines."""
REMEDY = (
    "give pictures=, a function from what the call returns to one array a prompt, (height, width, channels) in 0…1 and "
    "a clip with its frames first, as in pictures=lambda result: (result / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)"
)
SLACK = 1e-3
"""Greatest distance of a value from 0…1, by rounding."""


def pictures_of(result: object, count: int, *, where: str, strict: bool, given: bool = False) -> list[Picture]:
    """The pictures of so many prompts.

    Args:
        result: what the call returned, or what a function of the user made of it.
        strict: whether values outside of 0…1 are refused; else they are clipped, as a forecast may overshoot.
    """
    said = f"{where}: pictures= returned {_shape(result)}" if given else f"{where} returned {_shape(result)}"
    found = _rows(result if given else _content(result))
    if found is None:
        raise ConfigError(f"{said}, in which no pictures can be recognised; {REMEDY}")
    if len(found) != count:
        raise ConfigError(f"{said}, which is {len(found)} pictures for {count} prompts; {REMEDY}")
    return [_picture(row, said, strict=strict) for row in found]


def _content(result: object) -> Any:
    """The pictures of a result: an entry or attribute of a known name, else the first."""
    if isinstance(result, Mapping):
        named = next((result[name] for name in NAMES if result.get(name) is not None), None)
        return next(iter(result.values()), None) if named is None else named
    if isinstance(result, tuple):
        return result[0] if result else None
    if isinstance(result, (list, np.ndarray, torch.Tensor)) or _is_image(result):
        return result
    # The state of a modular pipeline, and results of custom ones.
    return next((found for name in NAMES if (found := getattr(result, name, None)) is not None), None)


def _rows(content: object) -> Sequence[Any] | None:
    if _is_image(content):
        return [content]
    if isinstance(content, (list, tuple)) or (isinstance(content, (np.ndarray, torch.Tensor)) and content.ndim > 0):
        return content  # type: ignore[return-value]  # arrays have a length and rows
    return None


def _picture(row: object, said: str, *, strict: bool) -> Picture:
    is_tensor = isinstance(row, torch.Tensor)
    if isinstance(row, torch.Tensor):
        row = row.detach().cpu()
        values = (row.float() if row.is_floating_point() else row).numpy()
    elif isinstance(row, (list, tuple)):
        # The frames of a clip.
        values = np.stack([np.asarray(frame) for frame in row]) if row else np.empty(0)
    else:
        values = np.asarray(row)
    if values.dtype == np.uint8:
        values = values / np.float32(255)
    axis = _channel_axis(values.shape, last=not is_tensor)
    if axis is None or not np.issubdtype(values.dtype, np.floating):
        raise ConfigError(f"{said}, which is not safely read as pictures; {REMEDY}")
    if strict:
        low, high = (float(of(values, initial=0.5, where=np.isfinite(values))) for of in (np.min, np.max))
        if low < -SLACK or high > 1 + SLACK:
            raise ConfigError(f"{said} with values from {low:.3g} to {high:.3g} instead of 0…1; {REMEDY}")
    made: Picture = np.clip(np.moveaxis(values, axis, -1), 0.0, 1.0)
    return made


def _channel_axis(shape: tuple[int, ...], *, last: bool) -> int | None:
    """The only axis of size 3, or else 1, that can be the channels; None if that is not clear.

    Args:
        last: whether the last axis wins if others are possible too, as in arrays.
    """
    if len(shape) not in (3, 4) or 0 in shape:
        return None
    for size in (3, 1):
        possible = {axis for axis in (0, len(shape) - 3, len(shape) - 1) if shape[axis] == size}
        if possible:
            if last and len(shape) - 1 in possible:
                return len(shape) - 1
            return possible.pop() if len(possible) == 1 else None
    return None


def _is_image(value: object) -> bool:
    # Of Pillow, which may be missing.
    return any(each.__module__.startswith("PIL.") and each.__name__ == "Image" for each in type(value).__mro__)


def _shape(value: object) -> str:
    kind = type(value).__name__
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return f"{kind} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"{kind} with {', '.join(map(str, value))}"
    if isinstance(value, (list, tuple)):
        return f"{kind} of {len(value)} {type(value[0]).__name__}" if value else f"empty {kind}"
    return kind


IDENTICAL_DB = 100.0
"""The value of identical pictures in a mean. One level of one channel of one pixel of a 64 × 64 image is 89 dB."""


def psnr(image: object, reference: object) -> float:
    """Peak signal-to-noise ratio in dB of `image` against `reference`; inf if they are identical.

    Args:
        image, reference: (height, width, channels), or a clip's (frames, height, width, channels), which counts as one
            large image; uint8 or floats in 0..1. Floats are better if images are close: at 59 dB and above the
            rounding to 8 bits is larger than the difference.

    Raises:
        ConfigError: another shape, another range or values that are not finite.
    """
    first, second = as_floats(image, reference)
    error = float(((first - second) ** 2).mean())
    return math.inf if error == 0.0 else -10.0 * math.log10(error)


def capped_psnr(image: Any, reference: Any) -> float:
    """`psnr`, at most `IDENTICAL_DB`; 0 if the image is not finite."""
    return min(psnr(image, reference), IDENTICAL_DB) if np.isfinite(image).all() else 0.0


def as_floats(image: object, reference: object) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as floats in 0..1, of one shape.

    Args:
        image, reference: as in `psnr`.

    Raises:
        ConfigError: as `psnr`.
    """
    arrays = []
    for name, given in (("image", image), ("reference", reference)):
        array = np.asarray(given)
        scaled = array / 255.0 if array.dtype == np.uint8 else array.astype(np.float64)
        if array.ndim not in (3, 4) or array.shape[-1] not in (1, 3):
            raise ConfigError(messages.NO_PICTURE, name=name, shape=array.shape)
        if not np.isfinite(scaled).all() or scaled.min() < -1e-6 or scaled.max() > 1 + 1e-6:
            raise ConfigError(messages.NO_PIXELS, name=name, low=scaled.min(), high=scaled.max())
        arrays.append(scaled)
    if arrays[0].shape != arrays[1].shape:
        raise ConfigError(f"image(shape={arrays[0].shape}): shape must be the reference's, got {arrays[1].shape} there")
    return arrays[0], arrays[1]
