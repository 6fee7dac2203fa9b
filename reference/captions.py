"""The small language of the captions, and which scenes are kept out of training.

Every caption names every attribute of its scene; wording varies, meaning does not.
"""

from __future__ import annotations

import hashlib

import numpy as np

from reference.drawing import BACKGROUND_COLOURS, OBJECT_COLOURS, PATTERNS, SHAPES
from reference.scenes import PLACES, RELATIONS, SIZES, Scene, Thing, sample_scene

#: Wordings of a name; the first is the plain one.
WORDINGS: dict[str, tuple[str, ...]] = {
    "large": ("large", "big"),
    "small": ("small", "little"),
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}

TEMPLATES = ("{what} on {where}", "{where} with {what}")

#: One arrangement in this many is held out.
HELD_OUT_SHARE = 10


def _say(name: str, rng: np.random.Generator | None) -> str:
    choices = WORDINGS.get(name, (name,))
    return choices[0 if rng is None else int(rng.integers(len(choices)))]


def _thing(thing: Thing, rng: np.random.Generator | None) -> str:
    return f"a {_say(thing.size, rng)} {thing.colour} {thing.shape}"


def caption(scene: Scene, rng: np.random.Generator | None = None) -> str:
    """``scene`` in words: in the plain wording, or in one that ``rng`` picks."""
    if scene.relation is None:
        what = f"{_thing(scene.things[0], rng)} in the {scene.place}"
    else:
        what = f"{_thing(scene.things[0], rng)} {_say(scene.relation, rng)} {_thing(scene.things[1], rng)}"
    where = f"a {scene.pattern} {scene.background} background"
    template = TEMPLATES[0 if rng is None else int(rng.integers(len(TEMPLATES)))]
    return template.format(what=what, where=where)


def vocabulary() -> list[str]:
    """Every word that a caption can hold, sorted."""
    names = [
        *SHAPES,
        *OBJECT_COLOURS,
        *SIZES,
        *PLACES,
        *RELATIONS,
        *BACKGROUND_COLOURS,
        *PATTERNS,
        "a background in the",
    ]
    phrases = [*names, *(wording for wordings in WORDINGS.values() for wording in wordings)]
    phrases += [template.format(what="", where="") for template in TEMPLATES]
    return sorted({word for phrase in phrases for word in phrase.split()})


def is_held_out(scene: Scene) -> bool:
    """Whether training never sees this arrangement (things, place and relation, on whatever background)."""
    arrangement = repr((scene.things, scene.place, scene.relation))
    return hashlib.sha256(arrangement.encode()).digest()[0] % HELD_OUT_SHARE == 0


def sample_split(rng: np.random.Generator, *, held_out: bool) -> Scene:
    """A random scene of the training side or of the held-out side."""
    while True:
        scene = sample_scene(rng)
        if is_held_out(scene) == held_out:
            return scene


def held_out_scenes(count: int, *, seed: int = 0) -> list[Scene]:
    """``count`` different held-out scenes, the same for the same seed."""
    rng = np.random.default_rng([seed, 77])
    scenes: dict[Scene, None] = {}
    while len(scenes) < count:
        scenes.setdefault(sample_split(rng, held_out=True))
    return list(scenes)
