"""Pictures from files, and their differences."""

from __future__ import annotations

from pathlib import Path

from omnireuse.errors import ConfigError, MissingExtraError

try:
    from PIL import Image, ImageChops, ImageSequence
except ImportError as missing:
    raise MissingExtraError("a picture", "lab") from missing

__all__ = ["DIFFERENCE_GAIN", "difference", "read_frames"]

DIFFERENCE_GAIN = 4
"""The factor by which differences to the full run are brightened, because the pictures look alike."""


def read_frames(path: Path) -> list[Image.Image]:
    """The frames of a PNG; a still image has one.

    Raises:
        ConfigError: no such image.
    """
    try:
        with Image.open(path) as image:
            return [frame.convert("RGB") for frame in ImageSequence.Iterator(image)]
    except OSError as error:
        raise ConfigError(f"image {path}: {error.strerror or error}; images belong beside their results") from error


def difference(image: Image.Image, full: Image.Image) -> Image.Image:
    """|image − full| of every channel, `DIFFERENCE_GAIN` times as bright."""
    return ImageChops.difference(image, full).point(lambda level: DIFFERENCE_GAIN * level)
