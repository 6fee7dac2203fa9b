"""People: what a caption tells, and in which part or colour of the Open Peeps style each word shows.

Every word means one thing wherever it stands: no colour of a shirt is also one of a background. Position, zoom and
tint are left to the drawing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

#: Expression -> face of the style.
EXPRESSIONS = {
    "smiling": "smile",
    "grinning": "smileBig",
    "loving": "lovingGrin1",
    "surprised": "awe",
    "sad": "solemn",
    "shouting": "rage",
}
#: What is on the head, in black, or in the shirt's colour (the turban) -> head of the style.
PLAIN_HAIR = {
    "an afro": "afro",
    "a bob": "bangs2",
    "a ponytail": "cornrows",
    "small buns": "buns",
    "a flat top": "flatTopLong",
    "a hat": "hatHip",
    "a bald head": "noHair1",
    "a turban": "turban",
}
#: What is on the head, in one of `HAIR_COLOURS` -> head of the style.
COLOURED_HAIR = {"a {} bun": "grayBun", "a {} mohawk": "mohawk", "{} bangs": "bangs"}
HAIR = {**PLAIN_HAIR, **COLOURED_HAIR}
#: What is on the nose -> accessory of the style.
EYEWEAR = {"": "", "glasses": "glasses3", "sunglasses": "sunglasses"}
BEARDS = {"": "", "a beard": "chin"}

SKIN_COLOURS = {"pale": "ffdbb4", "tan": "d08b5b", "bronze": "ae5d29", "dark": "694d3d"}
HAIR_COLOURS = {"blond": "ecc95c", "ginger": "d9541e", "silver": "dfe0e6", "brown": "70401f"}
SHIRT_COLOURS = {"red": "d9423c", "yellow": "f7d63e", "green": "4fbf62", "blue": "4a78e0", "purple": "9a4cc4"}
BACKGROUND_COLOURS = {
    "pink": "ffb0c8",
    "teal": "78cfc6",
    "gray": "b4b8c0",
    "cream": "fff2cf",
    "lilac": "cbb4f2",
    "orange": "ffab5e",
}

#: Tokens of a padded caption; the longest has 23 words and commas, a start and an end.
MAX_SEQUENCE_LENGTH = 26

#: One look in this many is held out.
HELD_OUT_SHARE = 10


@dataclass(frozen=True, kw_only=True)
class Person:
    """What a caption tells; an empty `hair_colour`, `eyewear` or `beard` is one that it leaves out."""

    expression: str
    skin: str
    hair: str
    hair_colour: str
    eyewear: str
    beard: str
    shirt: str
    background: str


#: Every attribute with its values; their order is that of the checker's answers.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "expression": tuple(EXPRESSIONS),
    "skin": tuple(SKIN_COLOURS),
    "hair": tuple(HAIR),
    "hair_colour": ("", *HAIR_COLOURS),
    "eyewear": tuple(EYEWEAR),
    "beard": tuple(BEARDS),
    "shirt": tuple(SHIRT_COLOURS),
    "background": tuple(BACKGROUND_COLOURS),
}


def sample_person(rng: np.random.Generator) -> Person:
    """A person drawn uniformly; half of all heads are of a style that has a colour."""

    def pick(names: Iterable[str]) -> str:
        known = list(names)
        return known[int(rng.integers(len(known)))]

    coloured = rng.random() < 0.5
    return Person(
        expression=pick(EXPRESSIONS),
        skin=pick(SKIN_COLOURS),
        hair=pick(COLOURED_HAIR if coloured else PLAIN_HAIR),
        hair_colour=pick(HAIR_COLOURS) if coloured else "",
        eyewear=pick(EYEWEAR),
        beard=pick(BEARDS),
        shirt=pick(SHIRT_COLOURS),
        background=pick(BACKGROUND_COLOURS),
    )


def caption(person: Person, rng: np.random.Generator | None = None) -> str:
    """``person`` in words; there is one wording, whatever ``rng``."""
    worn = [f"{person.skin} skin", person.hair.format(person.hair_colour), person.eyewear, person.beard]
    parts = ", ".join(part for part in worn if part)
    return f"a {person.expression} person with {parts} and a {person.shirt} shirt on a {person.background} background"


def vocabulary() -> list[str]:
    """Every word that a caption can hold, and the comma, sorted."""
    phrases = [
        "a person with skin , and shirt on background",
        *(name for names in ATTRIBUTES.values() for name in names),
    ]
    return sorted({word for phrase in phrases for word in phrase.replace("{}", "").split()})


def is_held_out(person: Person) -> bool:
    """Whether training never sees this look (all but shirt and background)."""
    look = repr((person.expression, person.skin, person.hair, person.hair_colour, person.eyewear, person.beard))
    return hashlib.sha256(look.encode()).digest()[0] % HELD_OUT_SHARE == 0


def sample_split(rng: np.random.Generator, *, held_out: bool) -> Person:
    """A random person of the training side or of the held-out side."""
    while True:
        person = sample_person(rng)
        if is_held_out(person) == held_out:
            return person


def held_out_people(count: int, *, seed: int = 0) -> list[Person]:
    """``count`` different held-out people, the same for the same seed."""
    rng = np.random.default_rng([seed, 78])
    people: dict[Person, None] = {}
    while len(people) < count:
        people.setdefault(sample_split(rng, held_out=True))
    return list(people)
