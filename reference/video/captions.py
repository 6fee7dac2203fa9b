"""The small language of the clips' captions, and which scenes are kept out of training.

Every word names one thing wherever it stands, so that a text encoder needs no word order to read it.
"""

from __future__ import annotations

import hashlib

import numpy as np

from omnireuse.errors import ConfigError
from reference.captions import HELD_OUT_SHARE
from reference.drawing import BACKGROUND_COLOURS, OBJECT_COLOURS, SHAPES
from reference.scenes import SIZES
from reference.video.scenes import DIRECTIONS, SPEEDS, MovingScene, all_scenes, sample_scene

#: Wordings of a name; the first is the plain one.
WORDINGS: dict[str, tuple[str, ...]] = {
    "large": ("large", "big"),
    "small": ("small", "little"),
    "quickly": ("quickly", "fast"),
}

TEMPLATES = (
    "a {size} {colour} {shape} moving {direction} {speed} on a {background} background",
    "a {background} background with a {size} {colour} {shape} moving {direction} {speed}",
)

#: Tokens of a padded caption; the longest caption has 11 words and an end.
MAX_SEQUENCE_LENGTH = 12


def caption(scene: MovingScene, rng: np.random.Generator | None = None) -> str:
    """``scene`` in words: in the plain wording, or in one that ``rng`` picks."""

    def pick(choices: tuple[str, ...]) -> str:
        return choices[0 if rng is None else int(rng.integers(len(choices)))]

    thing = scene.thing
    names = {"size": thing.size, "colour": thing.colour, "shape": thing.shape, "background": scene.background}
    names |= {"direction": scene.direction, "speed": scene.speed}
    return pick(TEMPLATES).format(**{kind: pick(WORDINGS.get(name, (name,))) for kind, name in names.items()})


def vocabulary() -> list[str]:
    """Every word that a caption can hold, sorted."""
    words = {*SHAPES, *OBJECT_COLOURS, *SIZES, *DIRECTIONS, *SPEEDS, *BACKGROUND_COLOURS}
    words |= {word for wordings in WORDINGS.values() for word in wordings}
    words |= {word for template in TEMPLATES for word in template.split() if "{" not in word}
    return sorted(words)


def is_held_out(scene: MovingScene) -> bool:
    """Whether training never sees this thing move this way (direction and speed), on whatever background."""
    arrangement = repr((scene.thing, scene.direction, scene.speed))
    return hashlib.sha256(arrangement.encode()).digest()[0] % HELD_OUT_SHARE == 0


def sample_split(rng: np.random.Generator, *, held_out: bool) -> MovingScene:
    """A random scene of the training side or of the held-out side."""
    while True:
        scene = sample_scene(rng)
        if is_held_out(scene) == held_out:
            return scene


def held_out_scenes(count: int, *, seed: int = 0) -> list[MovingScene]:
    """``count`` different held-out scenes, the same for the same seed.

    Raises:
        ConfigError: more than there are.
    """
    scenes = [scene for scene in all_scenes() if is_held_out(scene)]
    if count > len(scenes):
        raise ConfigError(
            f"held_out_scenes(count={count}): count must be at most {len(scenes)}, for there are no more of them"
        )
    return [scenes[index] for index in np.random.default_rng([seed, 77]).permutation(len(scenes))[:count]]
