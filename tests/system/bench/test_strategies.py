import json

import pytest

from bench import strategies
from bench._conclusion import margin

SMALL = [
    "--case",
    "image",
    "--steps",
    "12",
    "--guidance",
    "unguided",
    "--prompts",
    "1",
    "--settings",
    "2",
    "--timed",
    "1",
]
CHOSEN = ["--only", "fixed, even", "tea_cache", "--forecasters", "hold", "blend"]


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_and_a_merge_of_it_write_figures_tables_and_a_picture(tmp_path, capsys):
    strategies.main([*SMALL, *CHOSEN, "--out", str(tmp_path / "a")])
    strategies.main(["--merge", *[str(tmp_path / "a" / "strategies.json")] * 2, "--out", str(tmp_path / "b")])
    once, twice = (json.loads((tmp_path / name / "strategies.json").read_text()) for name in "ab")
    assert len(once["quality"]) == 5 + 4 + 2 * 2  # the full run, four floors, two strategies with two forecasters each
    assert twice["quality"] == once["quality"]  # the same part twice adds nothing
    assert len(once["wall_clock"]) == 4
    full, *others = once["quality"]
    assert full["psnr"] == [100.0]
    assert all(row["computed"] < 12 and row["psnr"][0] < 100 for row in others if row["strategy"] == "fixed, even")
    assert (tmp_path / "b" / "strategies-12.png").stat().st_size > 10_000
    assert "blend, unguided: as expected in" in capsys.readouterr().out


def _curve(forecaster, points, guided=False):
    common = {"case": "image", "steps": 28, "guided": guided, "strategy": "fixed, even", "forecaster": forecaster}
    return [common | {"computed": computed, "psnr": psnr} for computed, psnr in points]


def test_the_margin_is_taken_at_equal_computed_steps():
    hold = _curve("hold", [(8, [30.0, 40.0]), (16, [50.0, 60.0])])
    blend = _curve("blend", [(12, [46.0, 56.0]), (20, [70.0, 80.0])])
    found = margin(blend, hold, 7.0)
    assert (found["from"], found["to"]) == (12, 16)
    assert found["lowest"] == pytest.approx(6.0)  # at 12, where holding is half way between its two settings
    assert found["mean"] == pytest.approx(7.0)
    assert found["least_from"] == pytest.approx(14.0)
    assert margin(blend, hold, 9.0)["least_from"] is None
    assert margin(blend, hold, 6.0)["least_from"] == found["from"]
    assert margin(blend, _curve("hold", [(4, [30.0, 40.0])]), 7.0) is None
