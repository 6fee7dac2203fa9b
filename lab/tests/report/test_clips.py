from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
from PIL import Image

from lab.tests.comparisons import PROMPTS, gallery, images
from omnireuse_lab.report.clips import FRAME_MILLISECONDS, save_clip
from reference.demo.page import write_demo_page
from reference.pictures import read_frames

CLIP = np.random.default_rng(0).random((4, 16, 16, 3), dtype=np.float32)


def test_a_clip_is_kept_to_the_bit(tmp_path: Path) -> None:
    save_clip(CLIP, tmp_path / "clip.png")
    frames = np.stack([np.asarray(frame) for frame in read_frames(tmp_path / "clip.png")])
    np.testing.assert_array_equal(frames, np.rint(CLIP * 255).astype(np.uint8))


def test_the_page_holds_the_frames_of_a_clip_side_by_side_and_to_the_bit(tmp_path: Path) -> None:
    made = gallery()
    (tmp_path / "images").mkdir()
    for names in images(made):
        for name in names:
            save_clip(CLIP, tmp_path / name)
    page = write_demo_page(made, tmp_path, tmp_path / "page.html").read_text("utf-8")
    assert page.count('<div class="frame clip"><img src="data:image/webp') == 5 * len(PROMPTS)
    assert "--frames: 4;" in page
    assert f'data-frames="4" data-milliseconds="{FRAME_MILLISECONDS}"' in page
    held = re.search(r"data:image/webp;base64,([^\"]+)", page)
    assert held
    joined = np.asarray(Image.open(io.BytesIO(base64.b64decode(held[1]))))
    np.testing.assert_array_equal(joined, np.concatenate(list(np.rint(CLIP * 255).astype(np.uint8)), axis=1))
