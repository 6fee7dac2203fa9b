"""Reads the attributes back from an image: segmentation by colour, then comparison with drawn templates.

The background is estimated first (which colour, which pattern), what differs from it is split into connected pieces,
and each piece is compared with every shape over a range of radii and angles. Needs the ``report`` extra (scikit-image).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from omnireuse.errors import ConfigError, MissingExtraError
from reference.drawing import BACKGROUND_COLOURS, OBJECT_COLOURS, SHAPES, Array, shape_mask
from reference.scenes import IMAGE_SIZE, PLACES, RELATIONS, Scene

#: Colour distance (Euclidean, RGB in 0..1) from the background's tones at which a pixel belongs to an object.
FOREGROUND_DISTANCE = 0.22
#: Pieces with fewer pixels are specks: the smallest object drawn covers 55.
SPECK_PIXELS = 25
#: Overlap with the best template below which a piece has no known shape.
KNOWN_SHAPE_OVERLAP = 0.72
#: Radius in pixels between small and large.
SIZE_BORDER = 8.8
#: How far from a place's centre an object still stands in it, pixels.
PLACE_REACH = 9.0
#: Standard deviation of the background's light, as a share of the two tones' difference, below which it is plain.
PLAIN_CONTRAST = 0.18
#: Coherence of the structure tensor (1: one direction, 0: none) above which a pattern is striped.
STRIPE_COHERENCE = 0.5


@dataclass(frozen=True, kw_only=True)
class Found:
    """One object as read: names ("unknown" where nothing fits) and its centre in pixels (x, y)."""

    shape: str
    colour: str
    size: str
    centre: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All that was read from one image."""

    things: tuple[Found, ...]
    background: str
    pattern: str


@lru_cache(maxsize=1)
def _templates() -> tuple[list[tuple[str, float]], Array]:
    """Every shape over radii and angles, centred on its own centre of mass, with its (shape, radius)."""
    keys, masks = [], []
    middle = IMAGE_SIZE / 2
    axis = np.arange(IMAGE_SIZE) + 0.5
    for shape in SHAPES:
        for radius in np.arange(5.0, 14.1, 0.5):
            for angle in (0.0,) if shape == "circle" else (-0.2, -0.1, 0.0, 0.1, 0.2):
                mask = shape_mask(shape, (middle, middle), float(radius), angle, IMAGE_SIZE)
                x = middle - ((mask.sum(0) * axis).sum() / mask.sum() - middle)
                y = middle - ((mask.sum(1) * axis).sum() / mask.sum() - middle)
                keys.append((shape, float(radius)))
                masks.append(shape_mask(shape, (x, y), float(radius), angle, IMAGE_SIZE))
    return keys, np.stack(masks)


def _nearest(colour: Array, palette: dict[str, tuple[float, float, float]]) -> str:
    return min(palette, key=lambda name: float(np.linalg.norm(colour - np.asarray(palette[name], np.float32))))


def _read_background(image: Array) -> tuple[str, str, Array]:
    """Colour, pattern and each pixel's distance from the background's tones."""

    def distance(name: str) -> Array:
        dark, light = (np.asarray(tone, np.float32) for tone in BACKGROUND_COLOURS[name])
        axis = light - dark
        along = np.clip(((image - dark) @ axis) / (axis @ axis), -0.3, 1.3)
        off: Array = np.linalg.norm(image - dark - along[..., None] * axis, axis=-1).astype(np.float32)
        return off

    distances = {name: distance(name) for name in BACKGROUND_COLOURS}
    # Objects cover less than half of any scene, so the median pixel is background.
    name = min(distances, key=lambda key: float(np.median(distances[key])))
    off = distances[name]
    behind = off < 0.5 * FOREGROUND_DISTANCE
    # Keep a pixel away from the objects' soft edges.
    behind[1:] &= behind[:-1]
    behind[:-1] &= behind[1:]
    behind[:, 1:] &= behind[:, :-1]
    behind[:, :-1] &= behind[:, 1:]
    dark, light = (np.asarray(tone, np.float32) for tone in BACKGROUND_COLOURS[name])
    axis = light - dark
    tone: Array = np.asarray(((image - dark) @ axis) / (axis @ axis))
    if behind.sum() < 200:
        return name, "unknown", off
    y, x = (index.astype(np.float64) for index in np.nonzero(behind))
    slope = np.stack([np.ones_like(x), x, y], axis=1)
    flat = tone[behind] - slope @ np.linalg.lstsq(slope, tone[behind].astype(np.float64), rcond=None)[0]
    if float(flat.std()) < PLAIN_CONTRAST:
        return name, "plain", off
    gy, gx = (np.asarray(np.gradient(tone, axis=axis))[behind] for axis in (0, 1))
    xx, yy, xy = float((gx * gx).sum()), float((gy * gy).sum()), float((gx * gy).sum())
    coherence = np.hypot(xx - yy, 2 * xy) / (xx + yy + 1e-9)
    return name, "striped" if coherence > STRIPE_COHERENCE else "dotted", off


def _read_thing(image: Array, piece: NDArray[np.bool_]) -> Found:
    ys, xs = np.nonzero(piece)
    centre = float(xs.mean() + 0.5), float(ys.mean() + 0.5)
    inner = piece.copy()
    inner[1:] &= piece[:-1]
    inner[:-1] &= piece[1:]
    inner[:, 1:] &= piece[:, :-1]
    inner[:, :-1] &= piece[:, 1:]
    colour = np.median(image[inner if inner.sum() >= 8 else piece], axis=0)
    # Move the piece so that its centre of mass is at the image's middle, to the pixel.
    canvas = np.zeros((IMAGE_SIZE, IMAGE_SIZE), np.float32)
    ty = ys + round(IMAGE_SIZE / 2 - centre[1])
    tx = xs + round(IMAGE_SIZE / 2 - centre[0])
    inside = (ty >= 0) & (ty < IMAGE_SIZE) & (tx >= 0) & (tx < IMAGE_SIZE)
    canvas[ty[inside], tx[inside]] = 1.0
    keys, masks = _templates()
    overlap = np.minimum(masks, canvas).sum((1, 2)) / np.maximum(masks, canvas).sum((1, 2))
    best = int(overlap.argmax())
    shape, radius = keys[best]
    known = bool(overlap[best] >= KNOWN_SHAPE_OVERLAP)
    size = "small" if radius < SIZE_BORDER else "large"
    return Found(
        shape=shape if known else "unknown",
        colour=_nearest(colour.astype(np.float32), OBJECT_COLOURS),
        size=size if known else "unknown",
        centre=centre,
    )


def read(image: Array) -> Reading:
    """All attributes of ``image`` (64, 64, 3), float in 0..1.

    Raises:
        ConfigError: for another shape.
        MissingExtraError: without scikit-image.
    """
    try:
        from skimage.measure import label
    except ImportError as error:
        raise MissingExtraError("reading attributes from an image", "lab") from error
    image = np.asarray(image, np.float32)
    if image.shape != (IMAGE_SIZE, IMAGE_SIZE, 3):
        raise ConfigError(
            f"read(image.shape={image.shape}): image must be ({IMAGE_SIZE}, {IMAGE_SIZE}, 3) in 0..1; resize it first"
        )
    background, pattern, off = _read_background(image)
    pieces = label(off > FOREGROUND_DISTANCE, connectivity=1)
    masks = [pieces == index for index in range(1, int(pieces.max()) + 1)]
    things = tuple(_read_thing(image, mask) for mask in masks if mask.sum() >= SPECK_PIXELS)
    return Reading(things=things, background=background, pattern=pattern)


def _relation_holds(relation: str, first: Found, second: Found) -> bool:
    dx, dy = first.centre[0] - second.centre[0], first.centre[1] - second.centre[1]
    x, y = RELATIONS[relation]
    along, across = (dx * x, dy) if x else (dy * y, dx)
    return along > abs(across)


def _judge(scene: Scene, things: tuple[Found | None, ...]) -> dict[str, bool]:
    verdict: dict[str, bool] = {}
    for index, (asked, found) in enumerate(zip(scene.things, things, strict=True)):
        for field in ("shape", "colour", "size"):
            verdict[f"{field} {index + 1}"] = found is not None and getattr(found, field) == getattr(asked, field)
    if scene.place is not None:
        found, (x, y) = things[0], PLACES[scene.place]
        verdict["place"] = found is not None and math.dist(found.centre, (x, y)) < PLACE_REACH
    if scene.relation is not None:
        first, second = things
        verdict["relation"] = (
            first is not None and second is not None and _relation_holds(scene.relation, first, second)
        )
    return verdict


def check(scene: Scene, image: Array) -> dict[str, bool]:
    """Which attributes of ``scene`` the image shows: number, background, pattern, the things' own, place or relation.

    Things in the image are matched to the scene's in the order that serves it best.
    """
    reading = read(image)
    verdict = {
        "number": len(reading.things) == len(scene.things),
        "background": reading.background == scene.background,
        "pattern": reading.pattern == scene.pattern,
    }
    # More pieces than a handful is noise; the largest order matters little then, and permutations explode.
    padded: tuple[Found | None, ...] = reading.things[:6] + (None,) * len(scene.things)
    candidates = (_judge(scene, order) for order in permutations(padded, len(scene.things)))
    return verdict | max(candidates, key=lambda judged: sum(judged.values()))
