from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from omnireuse.errors import ConfigError
from omnireuse.lab.report.clips import FRAME_MILLISECONDS, read_frames, save_clip
from omnireuse.lab.report.page import render_page
from tests.helpers.comparisons import PROMPTS, gallery, images

CLIP = np.random.default_rng(0).random((4, 16, 16, 3), dtype=np.float32)


def test_a_clip_is_kept_to_the_bit(tmp_path: Path) -> None:
    save_clip(CLIP, tmp_path / "clip.png")
    frames = np.stack([np.asarray(frame) for frame in read_frames(tmp_path / "clip.png")])
    np.testing.assert_array_equal(frames, np.rint(CLIP * 255).astype(np.uint8))


def test_no_image_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="images belong beside their results"):
        read_frames(tmp_path / "none.png")


def test_the_page_holds_the_frames_of_a_clip_side_by_side_and_to_the_bit(tmp_path: Path) -> None:
    made = gallery()
    (tmp_path / "images").mkdir()
    for names in images(made):
        for name in names:
            save_clip(CLIP, tmp_path / name)
    page = render_page([made], tmp_path)
    assert page.count('<div class="frame clip"><img src="data:image/webp') == 5 * len(PROMPTS)
    assert "--frames: 4;" in page
    assert f'data-frames="4" data-milliseconds="{FRAME_MILLISECONDS}"' in page
    held = re.search(r"data:image/webp;base64,([^\"]+)", page)
    assert held
    joined = np.asarray(Image.open(io.BytesIO(base64.b64decode(held[1]))))
    np.testing.assert_array_equal(joined, np.concatenate(list(np.rint(CLIP * 255).astype(np.uint8)), axis=1))
