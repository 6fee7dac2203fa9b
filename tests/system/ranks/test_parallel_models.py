"""Models that are really parallel, on gloo ranks: no deadlock, one decision, and the picture of one rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOP = Path(__file__).parents[3]
LIMIT = 240
"""Seconds after which ranks count as deadlocked."""


def launch(ranks: int, kind: str, slip: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tests.system.ranks.worker", kind, slip, str(folder)]
    return subprocess.run(command, cwd=TOP, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.parametrize(
    ("ranks", "kind", "slip"), [(2, "ulysses", "slow"), (4, "ulysses", "none"), (2, "fsdp", "none")]
)
def test_ranks_decide_alike_and_make_the_picture_of_one(ranks: int, kind: str, slip: str, tmp_path: Path) -> None:
    done = launch(ranks, kind, slip, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    seen: list[dict[str, Any]] = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    for name, figures in seen[0].items():
        assert all(each[name]["reused"] == figures["reused"] for each in seen), name
        assert figures["reused"] == figures["alone"], name
        assert any(figures["reused"]) is (name != "never"), name
        assert figures["difference"] <= 1e-3 * figures["largest"], (name, figures["difference"])


def test_a_rank_that_raises_ends_the_others_too(tmp_path: Path) -> None:
    done = launch(2, "ulysses", "raises", tmp_path)
    assert done.returncode != 0
    assert "rank 0 ran out of memory" in done.stderr


def test_a_model_that_is_made_parallel_too_late_is_an_error_and_no_deadlock(tmp_path: Path) -> None:
    done = launch(2, "ulysses", "late", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        refused = json.loads((tmp_path / f"{rank}.json").read_text())["refused"]
        assert "ErrorControl measures" in refused
        assert "enable it again" in refused
