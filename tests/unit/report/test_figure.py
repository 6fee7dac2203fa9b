from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from reference.figures import comparison_figure, grid_figure, save_figure
from tests.helpers.comparisons import gallery, peers, save_images


def test_the_grid_holds_an_image_a_variant_and_prompt(tmp_path: Path) -> None:
    made = gallery()
    save_images(made, tmp_path)
    figure = grid_figure(made.cases[0], tmp_path, rows=2)
    pictures = [image for axes in figure.axes for image in axes.get_images()]
    # The full run has no difference to itself.
    assert len(pictures) == 2 * (2 * 5 - 1)
    # Two legend cells, and per row: 28 of the full run, 2 × 28 of each cache, 15 and 12 of the baselines.
    assert sum(len(axes.patches) for axes in figure.axes) == 2 + 2 * (28 + 2 * 56 + 15 + 12)
    words = " ".join(text.get_text() for text in figure.texts)
    assert "Under each image: its steps from noise to picture, and its difference to the full run, 4 times" in words
    assert "fewer steps (15)" in words
    save_figure(figure, tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as saved:
        assert saved.width > 1000


def test_the_same_figure_gives_the_same_bytes() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    for target in (first, second):
        save_figure(comparison_figure(peers()), target)
    assert first.getvalue() == second.getvalue()
