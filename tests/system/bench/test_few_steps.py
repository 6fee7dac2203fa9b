import json

import pytest

from bench import few_steps
from bench._few_steps_figures import margin


@pytest.mark.slow
@pytest.mark.integration
def test_a_part_is_measured_once_drawn_and_gone_on_from(tmp_path, monkeypatch, capsys):
    part = ["--case", "image", "--shift", "dynamic", "--guidance", "unguided"]
    part += ["--images", "1", "--prompts", "1", "--budgets", "9"]
    few_steps.main([*part, "--steps", "3", "20", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "few_steps.json").read_text())
    short, long = record["lengths"]
    assert (short["default"]["computed"], short["half"]["computed"]) == (3, 2)
    assert margin(short["default"]) is None
    assert (long["default"]["computed"], long["half"]["computed"]) == (12, 10)
    assert margin(long["default"]) == long["default"]["psnr"] - long["default"]["fewer"]
    assert len(long["default"]["at"]) == 12
    (budget,) = record["budgets"]
    assert (len(budget["at"]), budget["at"][0], budget["at"][-1]) == (9, 0, 26)
    assert budget["each"]["psnr"] == [budget["psnr"]]
    assert budget["fewer"] != budget["hold"]
    assert (tmp_path / "few-steps.png").stat().st_size > 10_000
    assert "the default loses more than 0.3 dB" in capsys.readouterr().out
    monkeypatch.setattr(few_steps.Player, "length", None)
    monkeypatch.setattr(few_steps.Player, "budget", None)
    few_steps.main([*part, "--steps", "3", "20", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "few_steps.json").read_text())["lengths"] == record["lengths"]
