import json

import pytest

from bench import strategies
from bench._choices import STRATEGIES, settings
from bench._conclusion import conclusions, margin
from omnireuse.errors import ConfigError, UnknownNameError

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


def test_parts_of_different_machines_are_not_merged(tmp_path):
    for name in "ab":
        record = {"commands": [], "environment": {"machine": name}, "quality": [], "wall_clock": []}
        (tmp_path / name).write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="must come from the environment of"):
        strategies.main(["--merge", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "out")])


def test_an_unknown_strategy_is_named():
    with pytest.raises(UnknownNameError, match="tea_cache"):
        strategies.main(["--only", "tea_cash"])


def test_fewer_settings_keep_the_ends_of_the_dial():
    dial = STRATEGIES["easy_cache"].dial
    assert settings("easy_cache", 2) == (dial[0], dial[-1])
    assert settings("easy_cache", 9) == dial


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


def test_less_is_expected_with_guidance():
    rows = [
        *_curve("hold", [(8, [40.0]), (16, [50.0]), (28, [100.0])]),
        *_curve("blend", [(8, [44.0]), (16, [56.0]), (27, [99.0])]),
    ]
    (entry,) = conclusions(rows)
    assert entry["margin"]["lowest"] == pytest.approx(4.0)
    assert entry["holds"] is False
    assert entry["margin"]["to"] == 16  # what computes nearly all steps does not count
    (guided,) = conclusions([row | {"guided": True} for row in rows])
    assert guided["holds"] is True
