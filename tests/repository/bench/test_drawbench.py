"""The protocol for models with weights, on the reference pipeline: two prompts, two methods, few steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import _scores as scores
from bench import drawbench
from omnireuse.errors import ConfigError
from omnireuse_lab.compare.harness import Harness
from omnireuse_lab.record import read_comparison
from reference.load import find_image_pipeline

CALL = json.dumps({"height": 64, "width": 64, "max_sequence_length": 20})


class Killed(BaseException):
    """What no handler expects."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Every run of the pipeline beside the short ones; none of the scores is installed."""
    for name in ("lpips", "ImageReward"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(scores, "CLIP", str(tmp_path / "nowhere"))
    inner, made = Harness.measure, list[Any]()

    def measure(self: Harness, steps: int, kept: Any, number: int, **options: Any) -> Any:
        made.append((steps, number))
        return inner(self, steps, kept, number, **options)

    monkeypatch.setattr(Harness, "measure", measure)
    return made


def asked(folder: Path, out: str, *more: str) -> list[str]:
    text = "".join(f'"a large {colour} circle, on a plain gray background",Colors\n' for colour in ("red", "blue"))
    (folder / "prompts.csv").write_text(f"Prompts,Category\n{text}", "utf-8")
    return [
        *(str(find_image_pipeline()), "--prompts", str(folder / "prompts.csv"), "--call", CALL, "--guidance", "3"),
        *("--steps", "4", "--only", "default-call", "fewer-steps", "--time", "1", "--out", str(folder / out), *more),
    ]


@pytest.mark.slow
@pytest.mark.integration
def test_a_killed_run_goes_on_and_measures_nothing_twice(
    runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drawbench.main(asked(tmp_path, "whole"))
    whole = read_comparison(tmp_path / "whole" / "results.json")
    (case,) = whole.cases
    assert len(case.prompts) == 2
    assert case.prompts[0] == "a large red circle, on a plain gray background"
    for point in case.points:
        assert point.error is None
        assert point.scores == {}
    assert [record.getMessage().split(":")[0] for record in caplog.records if record.levelname == "WARNING"][:3] == [
        f"score {name} is left out" for name in scores.SCORES
    ]
    timed = {point.method: point for point in case.points if point.seconds is not None}
    assert set(timed) == {"omnireuse, default by call", "fewer uniform steps"}
    assert all(point.peak_bytes is None for point in timed.values()), "there is no CUDA here"
    assert "fewer uniform steps" in (tmp_path / "whole" / "results.html").read_text("utf-8")

    expected, counting = list(runs), Harness.measure
    runs.clear()

    def killing(self: Harness, *args: Any, **options: Any) -> Any:
        if len(runs) == 3:  # in the middle of the first setting
            raise Killed
        return counting(self, *args, **options)

    monkeypatch.setattr(Harness, "measure", killing)
    with pytest.raises(Killed):
        drawbench.main(asked(tmp_path, "killed"))
    monkeypatch.setattr(Harness, "measure", counting)
    drawbench.main(asked(tmp_path, "killed"))
    assert runs == expected, "every run was made once"
    again = read_comparison(tmp_path / "killed" / "results.json").cases[0]
    for name in ("each", "ssim", "computed_steps", "kept_bytes", "error"):
        assert [getattr(point, name) for point in again.points] == [getattr(point, name) for point in case.points]
    runs.clear()
    drawbench.main(asked(tmp_path, "whole"))
    assert runs == [], "what is complete is only read"
    assert read_comparison(tmp_path / "whole" / "results.json").cases == whole.cases


@pytest.mark.slow
@pytest.mark.integration
def test_results_of_other_inputs_are_not_mixed(runs: list[Any], tmp_path: Path) -> None:
    drawbench.main(asked(tmp_path, "out", "--only", "default-call", "--time", "0"))
    with pytest.raises(ConfigError, match=r"was begun with another seed; delete the file to begin anew"):
        drawbench.main(asked(tmp_path, "out", "--only", "default-call", "--time", "0", "--seed", "1"))
    (tmp_path / "out" / "results.jsonl").write_text("not a journal, whatever its name says\n" * 40, "utf-8")
    with pytest.raises(ConfigError, match="not a journal"):
        drawbench.main(asked(tmp_path, "out"))
