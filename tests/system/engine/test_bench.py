"""``python -m bench engine`` on a trace of a few requests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests import TOP


def test_the_bench_counts_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOP))
    from bench import engine

    engine.main(["--requests", "8", "--repeats", "2", "--out", str(tmp_path)])
    runs = json.loads((tmp_path / "engine.json").read_text())["runs"]
    off, both = runs["caches off"], runs["both"]
    assert both["identical"]
    assert both["compared"] == off["counts"]["finish"] >= 7
    assert both["counts"]["encode"] <= runs["encodes shared"]["counts"]["encode"] < off["counts"]["encode"]
    assert len(both["seconds"]) == 2
    assert "bench.engine" in sys.modules
