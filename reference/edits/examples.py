"""Held-out edits with their pictures, as a file beside the weights: nothing has to be drawn to ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omnireuse.errors import ConfigError
from reference.drawing import Array
from reference.edits.task import Edit, as_edit, as_looks

EXAMPLES = Path(__file__).resolve().parents[2] / "models" / "faces-edit" / "examples.npz"
#: How many the file holds, and the share of them that takes its change from a second picture.
NUM_EXAMPLES, TWO_SHARE = 64, 0.25


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Edits with their pictures, float32 in 0..1.

    Attributes:
        edits: what is asked.
        references: (edits, 2, 64, 64, 3); the second is empty where there is none.
        truths: drawings of what is to come out, in the first reference's jitter, (edits, 64, 64, 3).
    """

    edits: Sequence[Edit]
    references: Array
    truths: Array

    def some(self, places: Sequence[int]) -> Examples:
        """Those at ``places``, in that order."""
        at = list(places)
        return Examples(
            edits=[self.edits[place] for place in at], references=self.references[at], truths=self.truths[at]
        )

    def with_references(self, number: int) -> Examples:
        """Those that have ``number`` references, 1 or 2."""
        return self.some([at for at, edit in enumerate(self.edits) if len(edit.people) == number])


def held_out_examples() -> Examples:
    """The 64 held-out edits of the checkout; every fourth takes its change from a second picture.

    Raises:
        ConfigError: when the file is not there; it lies in the repository and not in the wheel.
    """
    if not EXAMPLES.is_file():
        raise ConfigError(
            f"held_out_examples(): {EXAMPLES} must be a file; it is in models/faces-edit of the repository and not in "
            "the wheel: clone the repository, or draw it with `python -m reference.edits examples`"
        )
    with np.load(EXAMPLES) as file:
        looks, references, changes = file["looks"], file["references"], file["changes"]
    return Examples(
        edits=[as_edit(before, after, None if giver[0] < 0 else giver) for before, after, giver in looks.tolist()],
        references=references / np.float32(255),
        truths=(references[:, 0] + changes) / np.float32(255),
    )


def save_examples(examples: Examples, path: Path) -> None:
    """Write the file that `held_out_examples` reads; pictures are rounded to 8 bits.

    Truths are kept as what they add to the first reference, modulo 256, which is mostly nothing.
    """
    nobody = [-1] * len(as_looks(examples.edits[0].before))
    looks = [
        [as_looks(edit.before), as_looks(edit.after), as_looks(edit.giver) if edit.giver else nobody]
        for edit in examples.edits
    ]
    references, truths = (_as_bytes(pictures) for pictures in (examples.references, examples.truths))
    np.savez_compressed(path, looks=np.array(looks, np.int8), references=references, changes=truths - references[:, 0])


def _as_bytes(pictures: Array) -> Array:
    rounded: Array = (pictures * 255).round().astype(np.uint8)
    return rounded
