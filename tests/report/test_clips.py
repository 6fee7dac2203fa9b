from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from omnireuse.errors import ConfigError
from omnireuse.report.clips import FRAME_MILLISECONDS, read_frames, save_clip
from omnireuse.report.figure import grid_figure
from omnireuse.report.page import render_page

from .make import PROMPTS, comparison

CLIP = np.random.default_rng(0).random((4, 16, 16, 3), dtype=np.float32)


def test_a_clip_is_kept_to_the_bit(tmp_path: Path) -> None:
    save_clip(CLIP, tmp_path / "clip.png")
    frames = np.stack([np.asarray(frame) for frame in read_frames(tmp_path / "clip.png")])
    np.testing.assert_array_equal(frames, np.rint(CLIP * 255).astype(np.uint8))


def test_an_image_is_one_frame(tmp_path: Path) -> None:
    save_clip(CLIP[0], tmp_path / "image.png")
    (frame,) = read_frames(tmp_path / "image.png")
    np.testing.assert_array_equal(np.asarray(frame), np.rint(CLIP[0] * 255).astype(np.uint8))


def test_no_image_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="images belong beside their results"):
        read_frames(tmp_path / "none.png")


def test_the_page_plays_clips_together_and_stops_at_any_frame(tmp_path: Path) -> None:
    made = replace(comparison(), title="clips")
    (tmp_path / "images").mkdir()
    for variant in made.variants:
        for sample in variant.samples:
            save_clip(CLIP, tmp_path / sample.image)
    page = render_page(made, tmp_path)
    assert page.count('<div class="clip">') == len(made.variants) * len(PROMPTS)
    assert f"animation: play {4 * FRAME_MILLISECONDS}ms steps(4) infinite" in page
    assert page.count('name="frame"') == 1 + 4
    assert "#frame-3:checked) .clip img { animation: none; transform: translateX(-75.0000%); }" in page
    assert "<script" not in page
    assert grid_figure(made, tmp_path, rows=1).axes
