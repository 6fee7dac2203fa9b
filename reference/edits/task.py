"""What can be changed in a picture of a person, how it is said, and which edits are kept out of training.

A person is a row of looks here, one of each of `ASPECTS`, as numbers. Hair and its colour are one look: only some
heads have a colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product

import numpy as np

from reference.faces.people import (
    BACKGROUND_COLOURS,
    BEARDS,
    COLOURED_HAIR,
    EXPRESSIONS,
    EYEWEAR,
    HAIR_COLOURS,
    PLAIN_HAIR,
    SHIRT_COLOURS,
    SKIN_COLOURS,
    Person,
    is_held_out,
    sample_person,
)

#: Heads: (what is on the head, its colour or nothing).
HEADS = (*((hair, "") for hair in PLAIN_HAIR), *product(COLOURED_HAIR, HAIR_COLOURS))
#: What an edit may change, with its looks.
ASPECTS: dict[str, tuple[object, ...]] = {
    "expression": tuple(EXPRESSIONS),
    "skin": tuple(SKIN_COLOURS),
    "hair": HEADS,
    "eyewear": tuple(EYEWEAR),
    "beard": tuple(BEARDS),
    "shirt": tuple(SHIRT_COLOURS),
    "background": tuple(BACKGROUND_COLOURS),
}
NAMES = tuple(ASPECTS)
SIZES = tuple(len(looks) for looks in ASPECTS.values())
#: The looks that decide whether a person is held out: all but shirt and background.
LOOK_SIZES = SIZES[:5]
#: Tokens of a padded instruction; the longest has 11 words, a start and an end.
MAX_SEQUENCE_LENGTH = 13
#: Share of edits that take their change from a second picture.
TWO_SHARE = 0.2


def as_looks(person: Person) -> list[int]:
    """``person`` as a row of looks."""
    said = {**vars(person), "hair": (person.hair, person.hair_colour)}
    return [ASPECTS[name].index(said[name]) for name in NAMES]


def as_person(looks: Sequence[int]) -> Person:
    """The person of a row of looks."""
    said = {name: ASPECTS[name][int(look)] for name, look in zip(NAMES, looks, strict=True)}
    hair, colour = HEADS[int(looks[NAMES.index("hair")])]
    return Person(**{**said, "hair": hair, "hair_colour": colour})  # type: ignore[arg-type]


def clause(aspect: str, old: int, new: int) -> str:
    """What changes look ``old`` of ``aspect`` into look ``new``, in words."""
    if aspect == "hair":
        (was, _), (hair, colour) = HEADS[old], HEADS[new]
        return f"make the hair {colour}" if was == hair else f"give them {hair.format(colour)}"
    was, name = str(ASPECTS[aspect][old]), str(ASPECTS[aspect][new])
    if aspect in ("eyewear", "beard"):
        return f"add {name}" if name else f"remove the {was.removeprefix('a ')}"
    if aspect == "expression":
        return f"let them be {name}"
    return f"make the {aspect} {name}"


#: Every clause, and the number of that which changes one look into another, by aspect, old and new look.
CLAUSES: list[str] = []
CLAUSE_OF = np.zeros((len(NAMES), max(SIZES), max(SIZES)), np.int64)
for _place, _aspect in enumerate(NAMES):
    for _old, _new in permutations(range(SIZES[_place]), 2):
        _said = clause(_aspect, _old, _new)
        if _said not in CLAUSES:
            CLAUSES.append(_said)
        CLAUSE_OF[_place, _old, _new] = CLAUSES.index(_said)


def _joined(first: str, second: str) -> str:
    return first if first == second else f"{first} and {second}"


#: Every instruction: two clauses (first * len(CLAUSES) + second; one clause twice is said once), then pairs of aspects
#: to take from the second picture, then the empty one.
INSTRUCTIONS: tuple[str, ...] = (
    *(_joined(first, second) for first, second in product(CLAUSES, repeat=2)),
    *(f"the first with {_joined(f'the {a}', f'the {b}')} of the second" for a, b in product(NAMES, repeat=2)),
    "",
)


def vocabulary() -> list[str]:
    """Every word that an instruction can hold, sorted."""
    return sorted({word for instruction in INSTRUCTIONS for word in instruction.split()})


def held_out_looks() -> np.ndarray:
    """Whether training never sees a look, by expression, skin, hair, eyewear and beard."""
    held = [is_held_out(as_person([*looks, 0, 0])) for looks in product(*map(range, LOOK_SIZES))]
    return np.array(held).reshape(LOOK_SIZES)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One edit.

    Attributes:
        before: who is in the first picture.
        after: who is to come out; its look is held out from training.
        giver: who is in the second picture, if there is one.
        changed: the one or two of `ASPECTS` that change.
        instruction: in words.
    """

    before: Person
    after: Person
    giver: Person | None
    changed: tuple[str, ...]
    instruction: str

    @property
    def people(self) -> tuple[Person, ...]:
        """Who is in the pictures that it refers to."""
        return (self.before,) if self.giver is None else (self.before, self.giver)


def as_edit(before: Sequence[int], after: Sequence[int], giver: Sequence[int] | None) -> Edit:
    """The edit that turns ``before`` into ``after``, rows of looks that differ in one or two."""
    places = [place for place in range(len(NAMES)) if before[place] != after[place]]
    changed = tuple(NAMES[place] for place in places)
    if giver is None:
        said = " and ".join(clause(NAMES[place], before[place], after[place]) for place in places)
    else:
        said = f"the first with {_joined(f'the {changed[0]}', f'the {changed[-1]}')} of the second"
    return Edit(
        before=as_person(before),
        after=as_person(after),
        giver=None if giver is None else as_person(giver),
        changed=changed,
        instruction=said,
    )


def _sample_edit(rng: np.random.Generator, *, two: bool) -> Edit | None:
    """None where nothing would change."""
    before = as_looks(sample_person(rng))
    giver = as_looks(sample_person(rng))
    places = np.sort(rng.permutation(len(NAMES))[: rng.integers(1, 3)])
    after = list(before)
    for place in places:
        choices = [giver[place]] if two else range(SIZES[place])
        others = [look for look in choices if look != before[place]]
        after[place] = int(rng.choice(others)) if others else before[place]
    return None if after == before else as_edit(before, after, giver if two else None)


def held_out_edits(count: int, *, seed: int = 0, two_share: float = TWO_SHARE) -> list[Edit]:
    """``count`` edits whose outcome has a look that training never saw, the same for the same seed.

    Every ``1 / two_share``-th takes its change from a second picture.
    """
    rng = np.random.default_rng([seed, 79])
    edits: list[Edit] = []
    while len(edits) < count:
        two = int(len(edits) * two_share) != int((len(edits) + 1) * two_share)
        edit = _sample_edit(rng, two=two)
        if edit and is_held_out(edit.after):
            edits.append(edit)
    return edits
