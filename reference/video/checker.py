"""Reads a clip back: each frame as the image checker reads it, the thing by majority, its motion by a straight line.

Needs the ``report`` extra (scikit-image).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omnireuse.errors import ConfigError
from reference.checker import Reading
from reference.checker import read as read_frame
from reference.drawing import Array
from reference.scenes import IMAGE_SIZE
from reference.video.scenes import DIRECTIONS, MovingScene

#: Frames that must show exactly one thing for a motion to be read.
LEAST_FRAMES = 5
#: Pixels a frame below which a thing stands still, and between slow and quick.
STILL_BORDER, SPEED_BORDER = 0.5, 2.2
#: Root mean square distance from the straight line, pixels, above which a thing jumps about.
STRAIGHT_REACH = 1.5


@dataclass(frozen=True, kw_only=True)
class ClipReading:
    """All that was read from one clip; "unknown" where nothing fits.

    Attributes:
        num_things: how many things each frame shows.
        shape, colour, size, background: the name most frames agree on.
        direction, speed: of the motion; "still" where there is none.
    """

    num_things: tuple[int, ...]
    shape: str
    colour: str
    size: str
    background: str
    direction: str
    speed: str


def _most(names: Sequence[str]) -> str:
    return Counter(names).most_common(1)[0][0] if names else "unknown"


def _read_motion(frames: Sequence[Reading]) -> tuple[str, str]:
    """Direction and speed of the only thing in each frame, from a straight line through its centres."""
    seen = [(time, frame.things[0].centre) for time, frame in enumerate(frames) if len(frame.things) == 1]
    if len(seen) < LEAST_FRAMES:
        return "unknown", "unknown"
    time, centres = np.array([when for when, _ in seen], float), np.array([centre for _, centre in seen])
    (velocity, start) = np.polyfit(time, centres, 1)
    off = centres - (start + time[:, None] * velocity)
    if np.sqrt(np.square(off).sum(1).mean()) > STRAIGHT_REACH:
        return "unknown", "unknown"
    pace = float(np.linalg.norm(velocity))
    if pace < STILL_BORDER:
        return "still", "still"
    direction = max(DIRECTIONS, key=lambda name: float(np.dot(velocity, DIRECTIONS[name])))
    # More than thirty degrees off the axis is no direction that a caption knows.
    if float(np.dot(velocity, DIRECTIONS[direction])) < 0.866 * pace:
        direction = "unknown"
    return direction, "slowly" if pace < SPEED_BORDER else "quickly"


def read(clip: Array) -> ClipReading:
    """All attributes of ``clip`` (frames, 64, 64, 3), float in 0..1.

    Raises:
        ConfigError: for another shape.
        MissingExtraError: without scikit-image.
    """
    clip = np.asarray(clip, np.float32)
    if clip.ndim != 4 or len(clip) < LEAST_FRAMES or clip.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3):
        raise ConfigError(
            f"read(clip.shape={clip.shape}): clip must be (frames, {IMAGE_SIZE}, {IMAGE_SIZE}, 3) in 0..1, at least "
            f"{LEAST_FRAMES} of them; resize it first"
        )
    frames = [read_frame(frame) for frame in clip]
    things = [thing for frame in frames for thing in frame.things]
    direction, speed = _read_motion(frames)
    return ClipReading(
        num_things=tuple(len(frame.things) for frame in frames),
        shape=_most([thing.shape for thing in things]),
        colour=_most([thing.colour for thing in things]),
        size=_most([thing.size for thing in things]),
        background=_most([frame.background for frame in frames]),
        direction=direction,
        speed=speed,
    )


def check(scene: MovingScene, clip: Array) -> dict[str, bool]:
    """Which attributes of ``scene`` the clip shows; "number" asks for one thing in every frame."""
    reading = read(clip)
    return {
        "number": all(count == 1 for count in reading.num_things),
        "background": reading.background == scene.background,
        "shape": reading.shape == scene.thing.shape,
        "colour": reading.colour == scene.thing.colour,
        "size": reading.size == scene.thing.size,
        "direction": reading.direction == scene.direction,
        "speed": reading.speed == scene.speed,
    }
