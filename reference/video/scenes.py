"""Clips of one coloured shape that moves in a straight line: what a caption says, and how it is drawn.

Shapes, sizes, colours and the frame's size are those of the still scenes, so a frame can be read as an image is. Exact
path, radius, angle, tint and light are left to the drawing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from reference.drawing import (
    BACKGROUND_COLOURS,
    OBJECT_COLOURS,
    SHAPES,
    Array,
    blend,
    light_unevenly,
    shape_mask,
)
from reference.scenes import IMAGE_SIZE, SIZES, Thing

NUM_FRAMES = 9

#: Direction of motion, (x, y) with y down.
DIRECTIONS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}

#: Range of each speed in pixels a frame.
SPEEDS: dict[str, tuple[float, float]] = {"slowly": (1.0, 1.5), "quickly": (2.9, 3.5)}


@dataclass(frozen=True, kw_only=True)
class MovingScene:
    """What a caption tells: one thing, where it goes, how fast, and on which background."""

    thing: Thing
    direction: str
    speed: str
    background: str


def all_scenes() -> list[MovingScene]:
    """Every scene there is: 1,536."""
    things = [
        Thing(shape=shape, colour=colour, size=size) for shape, colour, size in product(SHAPES, OBJECT_COLOURS, SIZES)
    ]
    return [
        MovingScene(thing=thing, direction=direction, speed=speed, background=background)
        for thing, direction, speed, background in product(things, DIRECTIONS, SPEEDS, BACKGROUND_COLOURS)
    ]


def sample_scene(rng: np.random.Generator) -> MovingScene:
    """A scene drawn uniformly."""

    def pick(names: Iterable[str]) -> str:
        known = list(names)
        return known[int(rng.integers(len(known)))]

    thing = Thing(shape=pick(SHAPES), colour=pick(OBJECT_COLOURS), size=pick(SIZES))
    return MovingScene(thing=thing, direction=pick(DIRECTIONS), speed=pick(SPEEDS), background=pick(BACKGROUND_COLOURS))


def draw(scene: MovingScene, rng: np.random.Generator) -> Array:
    """``scene`` as frames (9, 64, 64, 3) in 0..1; ``rng`` decides all that the scene leaves open.

    The path's middle is near the frame's, so that the largest object stays inside at the highest speed.
    """
    tint = rng.uniform(-0.02, 0.02, 3).astype(np.float32)
    colour = np.asarray(OBJECT_COLOURS[scene.thing.colour], np.float32) + rng.uniform(-0.03, 0.03, 3).astype(np.float32)
    radius, angle = float(rng.uniform(*SIZES[scene.thing.size])), float(rng.uniform(-0.2, 0.2))
    speed, (dx, dy) = float(rng.uniform(*SPEEDS[scene.speed])), DIRECTIONS[scene.direction]
    along, across = float(rng.uniform(-3.0, 3.0)), float(rng.uniform(-12.0, 12.0))
    slope = float(rng.uniform(-0.08, 0.08)), float(rng.uniform(-0.08, 0.08))
    background = np.asarray(BACKGROUND_COLOURS[scene.background][0], np.float32) + tint
    empty = np.broadcast_to(background, (IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.float32)
    frames = []
    for frame in range(NUM_FRAMES):
        way = along + speed * (frame - (NUM_FRAMES - 1) / 2)
        centre = IMAGE_SIZE / 2 + dx * way + abs(dy) * across, IMAGE_SIZE / 2 + dy * way + abs(dx) * across
        mask = shape_mask(scene.thing.shape, centre, radius, angle, IMAGE_SIZE)
        frames.append(light_unevenly(blend(empty, colour, mask), slope))
    return np.stack(frames)
