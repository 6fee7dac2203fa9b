"""The model cards of the pipelines that edit, as `reference.card` writes those of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.card import TEMPLATES, arguments, head, table
from reference.drawing import Array
from reference.edits.evaluate import Figures, save_sheet
from reference.edits.examples import Examples, held_out_examples

__all__ = ["Measured", "figures_table", "write_card"]

NUM_SAMPLES = 12
#: By pipeline: what the card says where the two differ.
WORDS: dict[str, dict[str, str]] = {
    "faces-edit": {
        "which": "`models/faces-edit-8` is its variant of eight steps.",
        "loader": "load_edit_pipeline",
        "shared": "The autoencoder is that of `models/faces`: `shared.json` names its folder, and the loader reads it.",
        "sampling": "EDIT_SAMPLING",
        "examples": "beside this card",
        "training": "Its 4,151 steps took 300 seconds; docs/reference.md has more.",
    },
    "faces-edit-8": {
        "which": "This is `models/faces-edit` distilled to eight steps.",
        "loader": "load_few_steps_edit_pipeline",
        "shared": "`shared.json` names the folders of the parts of other models, and the loader reads it.",
        "sampling": "FEW_STEPS_EDIT_SAMPLING",
        "examples": "of `models/faces-edit`",
        "training": "The distillation of faces-edit took 792 steps and 96 seconds; docs/reference.md has more.",
    },
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the table of a card says.

    Attributes:
        made: of what the pipeline made.
        best: of the truths after the autoencoder.
        copies: of the first references as they are.
        seconds: of one CPU core, for an edit of one picture, called alone.
        weight_bytes: of the folder.
    """

    made: Figures
    best: Figures
    copies: Figures
    seconds: float
    weight_bytes: int


def figures_table(num_edits: int, measured: Measured) -> str:
    """The figures as a Markdown table."""
    made, best, copies = measured.made, measured.best, measured.copies
    rows = [
        ("held-out edits", f"{num_edits}"),
        ("changed attributes right", f"{made.changed_right:.1%}"),
        *((f"- {name} right", f"{share:.1%}") for name, share in made.by_aspect.items()),
        ("kept attributes right", f"{made.kept_right:.1%}"),
        ("edits wholly right", f"{made.edits_right:.1%}"),
        ("edits from two pictures wholly right", f"{made.with_two_right:.1%}"),
        ("PSNR to the drawing of what was asked", f"{made.psnr:.1f} dB"),
        ("- of that drawing through the autoencoder", f"{best.psnr:.1f} dB"),
        ("- of the first picture, unedited", f"{copies.psnr:.1f} dB"),
        ("kept attributes right, drawing through the autoencoder", f"{best.kept_right:.1%}"),
        ("seconds of one CPU core, an edit of one picture", f"{measured.seconds:.2f}"),
        ("weights", f"{measured.weight_bytes / 1e6:.1f} MB"),
    ]
    return table(rows)


def write_card(
    name: str, folder: Path, sampling: Mapping[str, Any], examples: Examples, made: Array, measured: Measured
) -> None:
    """Write README.md and samples.png into ``folder``."""
    save_sheet(examples, made, folder / "samples.png", count=NUM_SAMPLES, side=64)
    prompt = held_out_examples().edits[0].instruction
    card = (TEMPLATES / "faces-edit.md").read_text(encoding="utf-8")
    values = {
        "name": name,
        "prompt": prompt,
        "arguments": arguments(sampling),
        "length": sampling["max_sequence_length"],
        "table": figures_table(len(examples.edits), measured),
        "num_edits": len(examples.edits),
        "num_samples": NUM_SAMPLES,
        **WORDS[name],
    }
    (folder / "README.md").write_text(
        head("image-to-image", prompt, sampling) + card.format(**values), encoding="utf-8"
    )
