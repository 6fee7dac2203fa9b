from __future__ import annotations

import html.parser
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from omnireuse.errors import ConfigError
from omnireuse.lab.record import Case, Comparison
from omnireuse.lab.report.clips import save_pair
from omnireuse.lab.report.page import render_page
from omnireuse.lab.report.runs import runs_of, strip
from omnireuse.lab.report.style import DARK, LIGHT, in_words
from omnireuse.pipelines.closeness import Mean, Spread
from tests.helpers.comparisons import PROMPTS, STEPS, changed, gallery, peers, save_images


class Page(html.parser.HTMLParser):
    """The start tags of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_pictures_are_called_alike_where_nine_of_ten_are() -> None:
    assert in_words([70.0, 60.0, 50.0, 44.0]) == "hardly visible"
    assert in_words([44.0] + [50.0] * 9) == "indistinguishable"
    assert in_words([20.0]) == "visible changes"


@pytest.fixture
def made() -> Comparison:
    return gallery()


@pytest.fixture
def case(made: Comparison) -> Case:
    return made.cases[0]


@pytest.fixture
def rendered(made: Comparison, tmp_path: Path) -> str:
    save_images(made, tmp_path)
    return render_page([made], tmp_path)


def test_the_page_needs_nothing_beside_itself(rendered: str, case: Case) -> None:
    page = Page(rendered)
    sources = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href", "srcset")]
    images = [value for value in sources if value and value.startswith("data:image/png;base64,")]
    assert len(images) == (1 + len(case.points)) * len(PROMPTS)
    assert len(sources) == len(images)
    assert not re.search(r"url\((?!.data:)|@import|<script [^>]|<link", rendered)
    assert "default-src 'none'" in rendered, "and the browser is told to hold it to that"


def test_a_prompt_is_text_and_not_markup(rendered: str) -> None:
    assert "&lt;b&gt;pink&lt;/b&gt;" in rendered
    assert "<b>pink" not in rendered


def test_every_decision_has_a_cell(rendered: str, case: Case) -> None:
    cells = [attrs for tag, attrs in Page(rendered).tags if tag == "i" and attrs.get("class") in (None, "c")]
    per_prompt = STEPS + 2 * 2 * STEPS + 15 + 12
    assert len(cells) == per_prompt * len(PROMPTS)
    computed = sum("class" in attrs for attrs in cells)
    expected = sum(
        sum(not reused for _, line in strip(sample) for reused, _ in line)
        for run in runs_of(case)
        for sample in run.samples
    )
    assert computed == expected
    assert sum("title" in attrs for attrs in cells) == 2 * 2 * STEPS * len(PROMPTS), "those of a cache say why"
    assert any("cond, step 2: computed (policy), drift 0.01" in (attrs.get("title") or "") for attrs in cells)


def test_every_point_is_explained(rendered: str, case: Case) -> None:
    page = Page(rendered)
    dots = [attrs["data-row"] for _, attrs in page.tags if "data-row" in attrs]
    rows = {attrs["id"] for tag, attrs in page.tags if tag == "tr" and "id" in attrs}
    assert len(dots) == len(case.points)
    assert set(dots) == rows
    text = " ".join(" ".join(page.text).split())
    assert "96 KiB" in text
    assert "omnireuse.enable(pipeline, 'omnireuse') Copy" in text
    assert "pipeline(prompt, num_inference_steps=12) Copy" in text


def test_a_comparison_with_peers_has_a_page_of_its_own() -> None:
    text = " ".join(" ".join(Page(render_page([peers()], Path())).text).split())
    assert "shapes-flux, 28 steps, guidance 6" in text
    assert "Without figures: third peer (no such block)" in text
    assert "peer.enable(pipe, computed_steps=10)" in text
    assert "51.0 49.0 to 53.0" in text
    assert "steps for 40 dB 10.5" in text
    assert "steps for 60 dB" not in text, "what has no answer is left out"
    assert "interrupted" not in text
    assert "interrupted" in render_page([replace(peers(), complete=False)], Path())


def test_a_demo_and_peers_share_a_page(made: Comparison, case: Case, tmp_path: Path) -> None:
    save_images(made, tmp_path)
    page = Page(render_page([made, peers()], tmp_path))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids)) == len(case.points) + 7
    assert [tag for tag, _ in page.tags].count("h1") == 1


def test_a_step_that_a_branch_was_not_called_in_keeps_its_place(case: Case) -> None:
    sample = case.points[1].samples[0]
    fewer = tuple(each for each in sample.decisions if not (each.branch == "uncond" and each.step in (0, 5)))
    (_, cond), (_, uncond) = strip(replace(sample, decisions=fewer))
    assert len(cond) == len(uncond) == STEPS
    assert [words for _, words in uncond if "not called" in words] == ["step 1: not called", "step 6: not called"]


def test_every_row_of_a_table_has_a_cell_a_column(rendered: str) -> None:
    for text in (rendered, render_page([peers()], Path())):
        head, *rows = re.findall(r"<tr.*?</tr>", text, re.DOTALL)
        columns = len(re.findall("<th ", head))
        for row in rows:
            wide = re.search(r'colspan="(\d+)"', row)
            assert len(re.findall("<t[hd]", row)) + (int(wide[1]) - 1 if wide else 0) == columns


def test_the_figures_are_those_of_the_comparison(rendered: str, case: Case) -> None:
    text = " ".join(" ".join(Page(rendered).text).split())
    speedup = case.points[case.highlight].speedup
    assert speedup is not None
    assert f"{speedup.median:.2f}" in text
    assert "45.0 dB PSNR to the full run" in text
    assert "hardly visible" in text, "of two pictures one is below 45 dB"
    assert "+10.0 dB" in text
    assert "−1.4" in text, "a cache that loses to fewer steps must say so"
    assert "interrupted" not in text


def test_what_the_full_run_misses_is_not_held_against_the_others(rendered: str, case: Case) -> None:
    text = " ".join(" ".join(Page(rendered).text).split())
    assert text.count("not as asked: colour") == 2 * len(PROMPTS) + 1, "of the two runs of fewer steps, one twice"
    # Nobody shows the place of the third prompt, and only there the full run does not either.
    assert re.findall(r"not as asked: [^<]*place", rendered) == []
    assert re.findall(r"The full run itself misses ([^;]*);", text) == ["place"]
    found = case.points[2].samples
    assert [sample.lost(full) for sample, full in zip(found, case.full.samples, strict=True)] == [("colour",)] * 3
    unchecked = replace(case.full.samples[0], attributes=None)
    assert found[0].lost(unchecked) == ("colour",), "nothing is known of the full run"


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_texts_can_be_read_on_every_ground(theme: dict[str, str]) -> None:
    def luminance(colour: str) -> float:
        shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for ground in ("paper", "card"):
        for text in set(theme) - {"paper", "card", "line", "reused"}:
            dim, bright = sorted((luminance(theme[text]), luminance(theme[ground])))
            # What the guidelines for accessible content ask of text of normal size (WCAG 2.2, 1.4.3).
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{text} on {ground}"


def test_an_interrupted_run_says_so(made: Comparison, tmp_path: Path) -> None:
    save_images(made, tmp_path)
    assert "interrupted" in render_page([replace(made, complete=False)], tmp_path)


def test_a_comparison_without_baselines_or_checker_still_has_a_page(
    made: Comparison, case: Case, tmp_path: Path
) -> None:
    save_images(made, tmp_path)
    bare = tuple(
        replace(
            point,
            settings={},
            attributes=None,
            samples=tuple(replace(sample, attributes=None) for sample in point.samples),
        )
        for point in case.points
        if point.family != "baseline"
    )
    full = replace(case.full, attributes=None)
    text = render_page([changed(made, points=bare, full=full, guidance=1.0)], tmp_path)
    assert "attributes right" not in text
    assert "no guidance" in text


def test_a_missing_image_is_named(made: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"0-0\.png: No such file"):
        render_page([made], tmp_path)


def test_a_baseline_has_the_colour_of_its_cache(case: Case) -> None:
    found = {run.name: run.tone for run in runs_of(case)}
    assert found["omnireuse"] == found["fewer steps (12)"] == "highlight"
    assert found["TeaCache 0.2"] == found["fewer steps (15)"] == "first"
    assert found["full"] == "full"


def test_scores_latency_and_memory_have_columns_where_they_were_measured() -> None:
    made = peers()
    (case,) = made.cases
    assert "lpips" not in render_page([made], Path())
    score = Mean(mean=0.125, low=0.1, high=0.15)
    full = replace(case.full, seconds=Spread(median=2.0, low=2.0, high=2.0), scores={"lpips": score, "clip": None})
    first = replace(case.points[0], seconds=Spread(median=1.25, low=1.0, high=1.5), peak_bytes=3 * 2**30)
    first = replace(first, scores={"lpips": score, "clip": None})
    page = render_page([changed(made, full=full, points=(first, *case.points[1:]))], Path())
    for head in ("lpips", "clip", "latency, s", "peak memory"):
        assert f'<th scope="col">{head}</th>' in page
    for words in ("0.125", "0.100 to 0.150", "1.25 <small>1.00 to 1.50", "3 GiB", '<td data-head="clip">–</td>'):
        assert words in page


def test_the_worst_picture_of_each_method_is_shown_beside_the_full_run_the_worst_first(tmp_path: Path) -> None:
    made = peers()
    (case,) = made.cases
    white, black = np.ones((8, 8, 3)), np.zeros((8, 8, 3))
    points = []
    for number, point in enumerate(case.points):
        name = f"compare/{number}.png" if point.error is None else ""
        if name and point.method != "peer <one>":  # whose picture is lost
            save_pair(white, black, tmp_path / name)
        points.append(replace(point, worst=name))
    page = render_page([changed(made, points=tuple(points))], tmp_path)
    (shown,) = re.findall(r'<div class="pairs">(.*?)</div>', page, re.DOTALL)
    # Of the settings of a method, that at half of the steps.
    assert re.findall(r"<b>(.*?)</b>.*?: ([\d.]+) steps", shown) == [
        ("fewer steps", "14.0"),
        ("other peer", "14.0"),
        ("omnireuse default", "14.0"),
    ]
    assert shown.count('<img src="data:image/png;base64,') == 3
    assert 'class="pairs"' not in render_page([made], tmp_path)


def test_a_picture_outside_of_the_records_folder_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"Point\(worst='../secret.png'\): worst must lie in the folder of the record"
    ):
        replace(peers().cases[0].points[0], worst="../secret.png")
