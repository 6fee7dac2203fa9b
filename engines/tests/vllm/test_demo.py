"""``omnireuse engine-demo``: the table, the record and the picture of a small comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the timeline needs it")

from PIL import Image

from omnireuse.cli import main


def test_the_demo_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["engine-demo", "--users", "2", "--turns", "2", "--blocks", "14", "--out", str(tmp_path)]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    record = json.loads((tmp_path / "engine.json").read_text("utf-8"))
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
