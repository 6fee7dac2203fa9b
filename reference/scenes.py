"""Scenes of one or two coloured shapes on a background: what a caption says, and how it is drawn.

A `Scene` holds what the caption tells. Exact positions, radii, angles, tints, light and the background's phase are left
to the drawing, so that a model has to generate a picture and cannot look one up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reference.drawing import (
    BACKGROUND_COLOURS,
    OBJECT_COLOURS,
    PATTERNS,
    SHAPES,
    Array,
    blend,
    light_unevenly,
    pattern_mask,
    shape_mask,
)

IMAGE_SIZE = 64

#: Radius range of each size in pixels.
SIZES: dict[str, tuple[float, float]] = {"small": (5.8, 7.2), "large": (10.5, 12.5)}

#: Centre of each place in pixels (x, y).
PLACES: dict[str, tuple[float, float]] = {
    "top left": (18.0, 18.0),
    "top right": (46.0, 18.0),
    "bottom left": (18.0, 46.0),
    "bottom right": (46.0, 46.0),
    "centre": (32.0, 32.0),
}

#: Direction from the second object to the first, (x, y) with y down.
RELATIONS: dict[str, tuple[int, int]] = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}


@dataclass(frozen=True, kw_only=True)
class Thing:
    """One object: the names of its shape, colour and size."""

    shape: str
    colour: str
    size: str


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a caption tells: one thing at a ``place``, or a first thing in ``relation`` to a second."""

    things: tuple[Thing, ...]
    place: str | None
    relation: str | None
    background: str
    pattern: str


def sample_scene(rng: np.random.Generator, *, pair_share: float = 0.6) -> Scene:
    """A scene drawn uniformly; with probability ``pair_share`` it has two things, which differ in shape or colour."""

    def pick(names: Iterable[str]) -> str:
        known = list(names)
        return known[int(rng.integers(len(known)))]

    def thing() -> Thing:
        return Thing(shape=pick(SHAPES), colour=pick(OBJECT_COLOURS), size=pick(SIZES))

    first, background, pattern = thing(), pick(BACKGROUND_COLOURS), pick(PATTERNS)
    if rng.random() >= pair_share:
        return Scene(things=(first,), place=pick(PLACES), relation=None, background=background, pattern=pattern)
    second = thing()
    while (second.shape, second.colour) == (first.shape, first.colour):
        second = thing()
    things = (first, second)
    return Scene(things=things, place=None, relation=pick(RELATIONS), background=background, pattern=pattern)


def _centres(scene: Scene, radii: list[float], rng: np.random.Generator) -> list[tuple[float, float]]:
    jitter = rng.uniform(-2.5, 2.5, 4)
    if scene.relation is None:
        x, y = PLACES[scene.place or "centre"]
        return [(x + jitter[0], y + jitter[1])]
    # Two objects share the gap between them and sit around the middle; the cross axis only jitters.
    dx, dy = RELATIONS[scene.relation]
    apart = 1.08 * (radii[0] + radii[1]) + rng.uniform(4.0, 8.0)
    middle = 32.0 + jitter[0], 32.0 + jitter[1]
    centres = []
    for sign, other, off in ((1, radii[1], jitter[2]), (-1, radii[0], jitter[3])):
        along = sign * apart * (0.25 + 0.5 * other / (radii[0] + radii[1]))
        centres.append((middle[0] + dx * along + abs(dy) * off, middle[1] + dy * along + abs(dx) * off))
    return centres


def draw(scene: Scene, rng: np.random.Generator) -> Array:
    """``scene`` as an image (64, 64, 3) in 0..1; ``rng`` decides all that the scene leaves open."""
    dark, light = (np.asarray(tone, np.float32) for tone in BACKGROUND_COLOURS[scene.background])
    angle, period = float(rng.uniform(0.0, np.pi)), float(rng.uniform(8.0, 13.0))
    phase = (float(rng.random()), float(rng.random()))
    tint = rng.uniform(-0.02, 0.02, 3).astype(np.float32)
    image = np.broadcast_to(dark + tint, (IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.float32)
    image = blend(image, light + tint, pattern_mask(scene.pattern, angle, period, phase, IMAGE_SIZE))
    radii = [float(rng.uniform(*SIZES[thing.size])) for thing in scene.things]
    for thing, radius, centre in zip(scene.things, radii, _centres(scene, radii, rng), strict=True):
        colour = np.asarray(OBJECT_COLOURS[thing.colour], np.float32) + rng.uniform(-0.03, 0.03, 3).astype(np.float32)
        image = blend(image, colour, shape_mask(thing.shape, centre, radius, float(rng.uniform(-0.2, 0.2)), IMAGE_SIZE))
    slope = rng.uniform(-0.08, 0.08, 2)
    return light_unevenly(image, (float(slope[0]), float(slope[1])))
