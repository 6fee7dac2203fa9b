"""What a tolerance leaves, measured caption by caption, and what is made of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bench import tolerance
from bench._tolerance_figures import figures_of, smallest_fixed, within


@pytest.mark.integration
def test_a_tolerance_is_measured_in_the_final_latents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = ["--case", "shapes-flux", "--run", "shift 1", "--guidance", "unguided", "--prompts", "1", "--draws", "1"]
    tolerance.main([*part, "--tolerances", "0.2", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "tolerance.json").read_text())["rows"]
    untuned, tuned = (next(row for row in rows if row["method"] == name) for name in ("untuned", "tuned"))
    for row in (untuned, tuned):
        assert 2 < row["computed"] < 28
        assert 0 < row["errors"][0] < 0.3
    assert tuned["state"] == "ready"
    assert 3 < tuned["runs"] <= 6
    assert {row["setting"] for row in rows if row["method"] == "fewer"} == {untuned["computed"], tuned["computed"]}
    assert (tmp_path / "tolerance.png").stat().st_size > 5_000
    assert "kept in" in capsys.readouterr().out


def test_a_tolerance_is_kept_where_nine_of_ten_are_within() -> None:
    errors = [0.01 * number for number in range(1, 11)]
    assert tolerance.is_kept(errors, 0.09)
    assert not tolerance.is_kept(errors, 0.0899)
    assert within(errors, 0.055) == 0.5


def test_halving_finds_the_smallest_number_that_keeps_a_tolerance() -> None:
    asked: list[int] = []

    class Rows:
        def get(self, method: str, count: int) -> dict[str, Any]:
            asked.append(count)
            return {"errors": [0.1 if count < 11 else 0.01]}

    assert tolerance.smallest_kept(Rows(), 0.05) == 11
    assert len(asked) <= 5


def test_figures_are_over_all_draws_and_beside_the_smallest_fixed_number() -> None:
    rows = [
        *({"method": "fixed", "setting": count, "errors": [0.1 if count < 10 else 0.01]} for count in (7, 9, 10, 14)),
        {"method": "fewer", "setting": 12, "errors": [0.2, 0.01]},
        *({"method": "tuned", "setting": 0.05, "computed": 12, "errors": [0.01, last]} for last in (0.02, 0.1)),
    ]
    assert smallest_fixed(rows, 0.05) == 10
    found = figures_of(rows, "tuned", 0.05)
    assert found is not None
    assert (found["within"], found["ratio"], found["fewer"]) == (0.75, 1.2, 0.5)
    assert found["worst"] == pytest.approx(2.0)
    assert figures_of(rows, "untuned", 0.05) is None


def test_what_is_known_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"case": "shapes-flux", "run": "shift 1", "guided": True}
    record: dict[str, Any] = {"rows": []}
    made: list[tuple[str, float, int]] = []

    class Player:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def play(self, *key: Any) -> dict[str, Any]:
            made.append(key)
            return {"computed": 9, "errors": [0.01]}

    monkeypatch.setattr(tolerance, "Player", Player)
    options = argparse.Namespace(prompts=1, draws=1, out=tmp_path)
    for _ in range(2):
        assert tolerance.Rows(record, part, options).get("untuned", 0.05)["computed"] == 9
    assert made == [("untuned", 0.05, 0)]
    assert json.loads((tmp_path / "tolerance.json").read_text())["rows"] == record["rows"]
