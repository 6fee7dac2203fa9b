"""Anti-aliased shapes and backgrounds as arrays, for still scenes now and moving ones later.

Shapes are signed distances in pixels (negative inside); coverage is the distance clipped over one pixel.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

#: Object colours in 0..1 RGB, chosen far apart from each other and from every background tone.
OBJECT_COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.87, 0.14, 0.16),
    "green": (0.20, 0.80, 0.26),
    "blue": (0.18, 0.36, 0.95),
    "yellow": (0.97, 0.86, 0.16),
    "pink": (0.95, 0.45, 0.80),
    "white": (0.97, 0.97, 0.97),
}

#: Background colours: the dark tone and the light tone of a pattern.
BACKGROUND_COLOURS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "black": ((0.06, 0.06, 0.08), (0.22, 0.22, 0.25)),
    "gray": ((0.42, 0.42, 0.44), (0.60, 0.60, 0.62)),
    "brown": ((0.36, 0.21, 0.10), (0.55, 0.37, 0.22)),
    "teal": ((0.04, 0.34, 0.38), (0.14, 0.52, 0.56)),
}


def grid(size: int) -> tuple[Array, Array]:
    """Pixel-centre coordinates (x, y) of a square image, each of shape (size, size)."""
    axis = np.arange(size, dtype=np.float32) + 0.5
    x, y = np.meshgrid(axis, axis)
    return x, y


def _circle(x: Array, y: Array, radius: float) -> Array:
    distance: Array = np.hypot(x, y) - np.float32(radius)
    return distance


def _box(x: Array, y: Array, half_width: float, half_height: float) -> Array:
    distance: Array = np.maximum(np.abs(x) - np.float32(half_width), np.abs(y) - np.float32(half_height))
    return distance


def _square(x: Array, y: Array, radius: float) -> Array:
    return _box(x, y, 0.9 * radius, 0.9 * radius)


def _triangle(x: Array, y: Array, radius: float) -> Array:
    # Equilateral, tip up, moved down a little so that its bounding box is centred.
    inradius, y = np.float32(0.62 * radius), y - np.float32(0.25 * radius)
    slope = np.abs(x) * np.float32(np.sqrt(0.75)) - y * np.float32(0.5)
    distance: Array = np.maximum(slope, y) - inradius
    return distance


def _cross(x: Array, y: Array, radius: float) -> Array:
    arm = 0.36 * radius
    return np.minimum(_box(x, y, 1.08 * radius, arm), _box(x, y, arm, 1.08 * radius))


#: Shape name -> signed distance (x, y relative to the centre, radius), all in pixels.
SHAPES: dict[str, Callable[[Array, Array, float], Array]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
}

PATTERNS = ("plain", "striped", "dotted")


def coverage(distance: Array) -> Array:
    """How much of each pixel a shape covers, 0..1."""
    covered: Array = np.clip(np.float32(0.5) - distance, 0.0, 1.0)
    return covered


def shape_mask(shape: str, centre: tuple[float, float], radius: float, angle: float, size: int) -> Array:
    """Coverage (size, size) of one shape; ``angle`` in radians, lengths in pixels."""
    x, y = grid(size)
    dx, dy = x - np.float32(centre[0]), y - np.float32(centre[1])
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    return coverage(SHAPES[shape](cos * dx + sin * dy, cos * dy - sin * dx, radius))


def pattern_mask(pattern: str, angle: float, period: float, phase: tuple[float, float], size: int) -> Array:
    """Where the light tone of a background shows, (size, size) in 0..1; ``phase`` in periods."""
    if pattern == "plain":
        return np.zeros((size, size), np.float32)
    x, y = grid(size)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    u = (cos * x + sin * y) / np.float32(period) + np.float32(phase[0])
    v = (cos * y - sin * x) / np.float32(period) + np.float32(phase[1])
    du, dv = (u - np.round(u)) * np.float32(period), (v - np.round(v)) * np.float32(period)
    if pattern == "striped":
        return coverage(np.abs(du) - np.float32(0.25 * period))
    return coverage(np.hypot(du, dv) - np.float32(0.3 * period))


def light_unevenly(image: Array, slope: tuple[float, float]) -> Array:
    """``image`` (H, H, 3) lit unevenly: `slope` (x, y) is how much brighter it is at an edge than in the middle."""
    x, y = grid(len(image))
    half = len(image) / 2
    lighting = 1.0 + slope[0] / half * (x - half) + slope[1] / half * (y - half)
    lit: Array = np.clip(image * lighting[..., None], 0.0, 1.0).astype(np.float32)
    return lit


def blend(image: Array, colour: Array, mask: Array) -> Array:
    """``image`` (H, W, 3) with ``colour`` (3,) laid over it where ``mask`` (H, W) is 1."""
    return image + (colour - image) * mask[..., None]
