from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from omnireuse.errors import ConfigError
from omnireuse.evaluation.report.figure import grid_figure, quality_figure, save_figure
from tests.helpers.comparisons import comparison, save_images


def test_the_grid_holds_an_image_a_variant_and_prompt(tmp_path: Path) -> None:
    made = comparison()
    save_images(made, tmp_path)
    figure = grid_figure(made, tmp_path, rows=2)
    pictures = [image for axes in figure.axes for image in axes.get_images()]
    # The full run has no difference to itself.
    assert len(pictures) == 2 * (2 * len(made.variants) - 1)
    # Two legend cells, and per row: 28 of the full run, 2 × 28 of each cache, 15 and 12 of the floors.
    assert sum(len(axes.patches) for axes in figure.axes) == 2 + 2 * (28 + 2 * 56 + 15 + 12)
    words = " ".join(text.get_text() for text in figure.texts)
    assert "Under each image: its steps from noise to picture, and its difference to the full run, 4 times" in words
    assert "fewer steps (15)" in words
    save_figure(figure, tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as saved:
        assert saved.width > 1000


def test_the_row_below_the_images_is_their_difference_to_the_full_run(tmp_path: Path) -> None:
    made = comparison()
    (tmp_path / "images").mkdir()
    for level, variant in zip((100, 103, 90, 100, 180), made.variants, strict=True):
        for number, sample in enumerate(variant.samples):
            Image.new("RGB", (4, 4), (level, number, 0)).save(tmp_path / sample.image)
    figure = grid_figure(made, tmp_path, rows=2)
    pictures = [image for axes in figure.axes for image in axes.get_images()]
    below = {image.axes.get_position().y0 for image in pictures}
    assert len(below) == 4, "two rows for each prompt"
    found = [
        [int(image.get_array()[0, 0, 0]) for image in pictures if image.axes.get_position().y0 == height]
        for height in sorted(below, reverse=True)
    ]
    assert found == [[100, 103, 90, 100, 180], [12, 40, 0, 255]] * 2


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0-0\.png: No such file"):
        grid_figure(comparison(), tmp_path)


def _points(axes: Any) -> set[tuple[float, float]]:
    lines = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return {(x, y) for line in lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}


def test_points_stand_at_compute_and_quality() -> None:
    made = comparison()
    found = _points(quality_figure(made).axes[0])
    assert found == {(variant.computed_steps, variant.psnr) for variant in made.variants[1:]}


def test_identical_images_are_drawn_at_the_clamp() -> None:
    made = comparison()
    caches = tuple(
        replace(v, samples=tuple(replace(s, psnr=float("inf")) for s in v.samples)) if v.role == "cache" else v
        for v in made.variants
    )
    assert max(y for _, y in _points(quality_figure(replace(made, variants=caches)).axes[0])) == 100.0


def test_every_cache_is_named_once_below_the_plot() -> None:
    (legend,) = quality_figure(comparison()).legends
    assert [text.get_text() for text in legend.get_texts()] == ["TeaCache 0.2", "omnireuse", "fewer steps", "full"]


def test_the_same_comparison_gives_the_same_bytes() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    for target in (first, second):
        save_figure(quality_figure(comparison()), target)
    assert first.getvalue() == second.getvalue()
