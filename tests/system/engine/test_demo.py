"""``python -m reference engine-demo``: the table, the record and the picture of a small comparison."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the timeline needs the extra 'report'")

from PIL import Image
from rich.console import Console

from reference.commands import main
from reference.demo.engine.command import comparison_table
from reference.demo.engine.record import EngineComparison, EngineRun


def test_the_demo_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["engine-demo", "--users", "2", "--turns", "2", "--blocks", "14", "--out", str(tmp_path)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "engine.json").read_text())
    assert record["identical"]
    assert record["off"]["counts"]["finish"] == record["on"]["counts"]["finish"] == 4
    for kind in ("encode", "prefill"):
        assert record["on"]["counts"][kind] < record["off"]["counts"][kind]
        assert f"{record['on']['counts'][kind]:,}" in said
    assert record["off"]["counts"]["preempt"], "no preemption to be seen in the picture"
    assert "identical outputs" in said
    assert "yes" in said
    with Image.open(tmp_path / "timeline.png") as picture:
        assert picture.width > 1000


def test_a_difference_is_said() -> None:
    run = EngineRun(
        name="x", num_steps=1, seconds=1.0, counts={"finish": 1}, marks=[(0, "user 1, turn 1", "finish", 1)]
    )
    same = EngineComparison(off=run, on=run, identical=True, largest_difference=0.0)
    verdicts = [
        comparison.verdict
        for comparison in (
            same,
            replace(same, largest_difference=3e-15),
            replace(same, identical=False, largest_difference=float("inf")),
        )
    ]
    assert verdicts == ["yes, bit for bit", "yes, states within 3e-15", "no"]
    console = Console(record=True, width=100)
    console.print(comparison_table(replace(same, identical=False)))
    assert "no" in console.export_text()


def test_the_table_is_whole_at_eighty_columns() -> None:
    counts = {
        "finish": 5000,
        "encode": 123_456,
        "prefill": 12_345_678,
        "decode": 9,
        "prefix hit": 12_345_678,
        "preempt": 9,
    }
    run = EngineRun(name="caches off", num_steps=123_456, seconds=12345.67, counts=counts, marks=[(0, "a, b", "x", 1)])
    made = EngineComparison(off=run, on=replace(run, name="caches on"), identical=True, largest_difference=3e-15)
    target = io.StringIO()
    Console(file=target, width=80).print(comparison_table(made))
    text = target.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for word in ("caches off", "caches on", "ratio", "12,345,678", "12345.67 s", "1.00×", "yes, states within 3e-15"):
        assert word in text


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("reference.demo.engine.command.TinyOmniModel", lambda **_: pytest.fail("work began"))
    assert main(["engine-demo", "--out", str(tmp_path / "file")]) == 2
    assert "engine.json: cannot be written" in capsys.readouterr().err


def test_a_number_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engine-demo", "--users", "0"]) == 2
    assert "users must be at least 1" in capsys.readouterr().err.replace("\n", " ")
    assert main(["engine-demo", "--blocks", "3", "--users", "1", "--turns", "1"]) == 2
    error = capsys.readouterr().err
    assert "must fit in the KV cache" in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
