"""Models that are really parallel, on gloo ranks: no deadlock, one decision, and the picture of one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOP = Path(__file__).parents[3]
LIMIT = 240
"""Seconds after which ranks count as deadlocked."""
MESSAGES = {"raises": "rank 0 ran out of memory", "interrupted": "KeyboardInterrupt"}


def launch(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tests.system.ranks.worker", *arguments]
    shown = os.environ | {"PYTHONFAULTHANDLER": "1"}
    return subprocess.run(command, cwd=TOP, env=shown, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.parametrize(
    ("ranks", "kind", "family", "end"),
    [
        (2, "ulysses", "flux", "raises"),
        (4, "ulysses", "flux", "interrupted"),
        (2, "ulysses", "wan", "interrupted"),
        (2, "ring", "flux", "raises"),
        (2, "ring", "wan", "interrupted"),
        (2, "tensor", "flux", "raises"),
        (2, "tensor", "flux", "interrupted"),
        (2, "fsdp", "flux", "interrupted"),
    ],
)
def test_ranks_decide_alike_with_a_slow_one_and_end_with_a_lost_one(
    ranks: int, kind: str, family: str, end: str, tmp_path: Path
) -> None:
    done = launch(ranks, kind, family, end, str(tmp_path))
    written = [tmp_path / f"{rank}.json" for rank in range(ranks)]
    assert all(file.exists() for file in written), done.stderr[:6000]
    seen: list[dict[str, Any]] = [json.loads(file.read_text("utf-8")) for file in written]
    for name, figures in seen[0].items():
        assert all(each[name]["reused"] == figures["reused"] for each in seen), name
        assert figures["reused"] == figures["alone"], name
        assert any(figures["reused"]) is (name != "never"), name
        assert figures["difference"] <= 1e-5 * figures["largest"], (name, figures["difference"])
    assert done.returncode != 0
    assert MESSAGES[end] in done.stderr


def test_a_model_that_is_made_parallel_too_late_is_an_error_and_no_deadlock(tmp_path: Path) -> None:
    done = launch(2, "late", str(tmp_path))
    assert done.returncode == 0, done.stderr[:6000]
    for rank in range(2):
        refused = json.loads((tmp_path / f"{rank}.json").read_text("utf-8"))["refused"]
        assert "ErrorControl measures" in refused
        assert "enable it again" in refused


def test_ranks_tune_together_and_follow_one_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "cache"))
    done = launch(2, "tunes", str(tmp_path))
    assert done.returncode == 0, done.stderr[:6000]
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) for rank in range(2))
    assert one == other
    assert one["states"] == ["measuring", "ready", "ready", "ready"]
    assert one["latents"][2] == one["latents"][3], "the plan is kept, and serves the next from its first picture on"
    assert 0 < len(set(one["computed"][1])) < 20
    assert Path(one["paths"][0]).is_file()


def test_an_error_of_tuning_on_one_rank_leaves_all_ranks_untuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / "cache"))
    done = launch(2, "errs", str(tmp_path))
    assert done.returncode == 0, done.stderr[:6000]
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) for rank in range(2))
    assert one["latents"] == other["latents"]
    untuned, again, full, after = one["latents"]
    assert untuned == again == after != full
    assert all("LookupError: nobody expects it" in state for state in (*one["states"], *other["states"]))
