"""The committed cards are what their templates make of the figures that they state."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests import TOP

pytest.importorskip("PIL")
from reference.card import write_card
from reference.case import CLIPS, IMAGES, Case
from reference.evaluate import Figures
from reference.pictures import read_frames

WEIGHTS = TOP / "models"
SHAPES = {"image": (64, 64, 3), "clip": (9, 64, 64, 3)}


def stated(card: str) -> Figures:
    """The figures in the table of ``card``."""
    rows = re.findall(r"^\| (.+) \| ([\d.]+)(?:%| dB| MB)? \|$", card.partition("## Captions")[0], re.MULTILINE)
    number = {name: float(value) for name, value in rows}
    psnr_guided, psnr_unguided = (value for name, value in number.items() if name.endswith(", PSNR"))
    return Figures(
        num_captions=int(number["held-out captions"]),
        attributes_right=number["attributes right"] / 100,
        captions_right=number["captions wholly right"] / 100,
        right_by_attribute={name.split()[1]: value / 100 for name, value in number.items() if name.startswith("- ")},
        seconds_each=next(value for name, value in number.items() if name.startswith("seconds")),
        num_threads=1,
        num_psnr_prompts=int(number["prompts behind each PSNR"]),
        psnr_guided=psnr_guided,
        psnr_unguided=psnr_unguided,
        weight_bytes=round(number["weights"] * 1e6),
    )


@pytest.mark.parametrize("case", [IMAGES, CLIPS], ids=lambda case: case.name)
def test_the_committed_card_is_what_the_command_writes(case: Case, tmp_path: Path) -> None:
    committed = WEIGHTS / case.name / "README.md"
    if not committed.exists():
        pytest.skip("the weights are in the repository, not in the package")
    card = committed.read_text(encoding="utf-8")
    figures = stated(card)
    made = np.random.default_rng(0).random((figures.num_captions, *SHAPES[case.unit]), dtype=np.float32)
    write_card(case, tmp_path, figures, made)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == card
    first, *rest = read_frames(tmp_path / "samples.png")
    assert (first.size, len(rest)) == {"image": ((512, 256), 0), "clip": ((512, 128), 8)}[case.unit]
    # The grid goes row by row.
    np.testing.assert_allclose(np.asarray(first)[64:128, :64] / 255, made[8].reshape(-1, 64, 64, 3)[0], atol=0.002)
