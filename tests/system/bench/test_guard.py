"""What a run knows of its picture's hardness, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import guard
from bench._guard_figures import conclude, floor, of_error_control, oracle


def test_an_oracle_spends_steps_where_they_are_needed() -> None:
    psnr = np.array([[30.0, 40.0], [40.0, 41.0]])
    assert oracle((8, 10), psnr, psnr, 9) == (40.0, 40.0)
    assert oracle((8, 10), psnr, psnr, 8) == (floor(np.array([30.0, 40.0])), 35.0)
    assert oracle((8, 10), psnr, psnr, 7) is None


def test_error_control_is_compared_at_equal_steps() -> None:
    part = {"case": "one", "run": "a", "guided": True}
    fixed = [part | {"method": "fixed", "setting": count, "computed": count, "errors": [0.1] * 4} for count in (8, 16)]
    rule = part | {"method": "untuned", "setting": 0.05, "computed": 11.3, "errors": [0.05] * 4}
    found = of_error_control([*fixed, rule, rule | {"computed": 4}])
    assert found == {"quantile": 6.02, "mean": 6.02, "spread": 0.0, "settings": 1, "better": 1}


@pytest.mark.slow
@pytest.mark.integration
def test_a_switched_run_follows_the_plan_up_to_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard, "BUDGETS", (8, 9, 10, 11))
    monkeypatch.setattr(guard, "SWITCHED", {9: {"more": 11, "fewer": 8}})
    part = ["--case", "shapes-sd", "--guidance", "unguided", "--prompts", "5", "--out", str(tmp_path)]
    guard.main(part)
    rows = json.loads((tmp_path / "guard.json").read_text())["rows"]
    plans = {row["budget"]: row for row in rows if row["kind"] == "plan"}
    assert {budget: len(row["steps"]) for budget, row in plans.items()} == {8: 8, 9: 9, 10: 10, 11: 11}
    for row in plans.values():
        assert [each[0] for each in row["errors"]] == [None] * 5
        assert all(0 < error < 2 for each in row["errors"] for error in each[1:])
    for row in rows:
        if row["kind"] == "all":
            assert row["steps"][: row["after"]] == plans[9]["steps"][: row["after"]]
            assert row["steps"][row["after"] :] == list(range(row["steps"][row["after"]], 28))
            assert np.mean(row["psnr"]) > np.mean(plans[9]["psnr"])
    assert conclude(rows, [])["cases"]
    guard.main([*part, "--show"])
    assert "at equal steps" in capsys.readouterr().out
