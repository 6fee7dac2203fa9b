from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from lab.tests.comparisons import changed, gallery, peers, save_images
from lab.tests.page_text import Page
from omnireuse.errors import ConfigError
from omnireuse_lab.closeness import Mean, MedianRange
from omnireuse_lab.record import Comparison
from omnireuse_lab.report.page import write_page
from reference.demo.page import write_demo_page


def page_of(made: Comparison, folder: Path) -> str:
    return write_page(made, folder / "page.html").read_text("utf-8")


def test_a_comparison_shows_its_points_and_what_follows_from_them(tmp_path: Path) -> None:
    text = Page(page_of(peers(), tmp_path)).words
    assert "shapes-flux, 28 steps, guidance 6" in text
    assert "Without figures: third peer (no such block)" in text
    assert "peer.enable(pipe, computed_steps=10)" in text
    assert "51.0 49.0 to 53.0" in text
    assert "Made with torch 2.13.0." in text
    assert "dB above the best without a cache, 2x fewer steps 14" in text
    assert "best other cache, 4x fewer steps" not in text, "what has no answer is left out"
    assert "not finished" not in text
    assert "not finished" in page_of(replace(peers(), complete=False), tmp_path)


def test_every_row_of_a_table_has_a_cell_a_column(tmp_path: Path) -> None:
    made = gallery()
    save_images(made, tmp_path)
    demo = write_demo_page(made, tmp_path, tmp_path / "demo.html").read_text("utf-8")
    for text in (demo, page_of(peers(), tmp_path)):
        head, *rows = re.findall(r"<tr.*?</tr>", text, re.DOTALL)
        columns = len(re.findall("<th ", head))
        for row in rows:
            wide = re.search(r'colspan="(\d+)"', row)
            assert len(re.findall("<t[hd]", row)) + (int(wide[1]) - 1 if wide else 0) == columns


def test_scores_latency_and_memory_have_columns_where_they_were_measured(tmp_path: Path) -> None:
    made = peers()
    (case,) = made.cases
    assert "lpips" not in page_of(made, tmp_path)
    score = Mean(mean=0.125, low=0.1, high=0.15)
    full = replace(case.full, seconds=MedianRange(median=2.0, low=2.0, high=2.0), scores={"lpips": 0.0, "clip": 31.5})
    first = replace(case.points[0], seconds=MedianRange(median=1.25, low=1.0, high=1.5), peak_bytes=3 * 2**30)
    first = replace(first, scores={"lpips": score})
    page = page_of(changed(made, full=full, points=(first, *case.points[1:])), tmp_path)
    for head in ("lpips", "clip", "latency, s", "peak memory"):
        assert f'<th scope="col">{head}</th>' in page
    for words in (
        "0.125",
        "0.100 to 0.150",
        "31.500",
        "1.25 <small>1.00 to 1.50",
        "3 GiB",
        '<td data-head="clip">–</td>',
    ):
        assert words in page


def test_a_picture_outside_of_the_records_folder_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"Point\(worst='../secret.png'\): worst must lie in the folder of the record"
    ):
        replace(peers().cases[0].points[0], worst="../secret.png")
