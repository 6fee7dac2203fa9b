"""Models that are really parallel, on gloo ranks: no deadlock, one decision, and the picture of one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import TOP

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIMIT = 600
"""Seconds after which ranks count as deadlocked."""
MESSAGES = {"raises": "rank 0 ran out of memory", "interrupted": "KeyboardInterrupt"}


def launch(ranks: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "tests.system.ranks.worker", *arguments]
    shown = os.environ | {"PYTHONFAULTHANDLER": "1"} | variables
    return subprocess.run(
        command, cwd=TOP, env=shown, capture_output=True, encoding="utf-8", timeout=LIMIT, check=False
    )


def written(folder: Path, done: subprocess.CompletedProcess[str], ranks: int) -> list[dict[str, Any]]:
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    assert all(file.exists() for file in files), done.stderr[:6000]
    return [json.loads(file.read_text("utf-8")) for file in files]


@pytest.mark.parametrize(
    ("ranks", "cases", "end"),
    [
        (2, "ulysses-flux,ring-wan,tensor-flux", "raises"),
        (2, "ulysses-wan,ring-flux,fsdp-flux", "interrupted"),
        (4, "ulysses-flux", "interrupted"),
    ],
)
def test_ranks_decide_alike_with_a_slow_one_and_end_with_a_lost_one(
    ranks: int, cases: str, end: str, tmp_path: Path
) -> None:
    done = launch(ranks, cases, end, str(tmp_path))
    seen = written(tmp_path, done, ranks)
    for case in cases.split(","):
        for name, figures in seen[0][case].items():
            assert all(each[case][name]["reused"] == figures["reused"] for each in seen), (case, name)
            assert figures["reused"] == figures["alone"], (case, name)
            assert any(figures["reused"]) is (name != "never"), (case, name)
            assert figures["difference"] <= 1e-5 * figures["largest"], (case, name, figures["difference"])
    assert done.returncode != 0
    assert MESSAGES[end] in done.stderr


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks saw of all that needs no lost one."""
    folder = tmp_path_factory.mktemp("each")
    done = launch(2, "each", str(folder), OMNIREUSE_TUNE="1")
    assert done.returncode == 0, done.stderr[:6000]
    return written(folder, done, 2)


def test_a_model_that_is_made_parallel_too_late_is_an_error_and_no_deadlock(each: list[dict[str, Any]]) -> None:
    for rank in each:
        refused = rank["too_late"]["refused"]
        assert "ErrorControl measures" in refused
        assert "enable it again" in refused


def test_ranks_tune_together_and_follow_one_plan(each: list[dict[str, Any]]) -> None:
    one, other = (rank["tunes"] for rank in each)
    assert one == other
    assert one["states"] == ["measuring", "ready", "ready", "ready"]
    assert one["latents"][2] == one["latents"][3], "the plan is kept, and serves the next from its first picture on"
    assert 0 < len(set(one["computed"][1])) < 20
    assert Path(one["paths"][0]).is_file()


def test_an_error_of_tuning_on_one_rank_leaves_all_ranks_untuned(each: list[dict[str, Any]]) -> None:
    one, other = (rank["errs"] for rank in each)
    assert one["latents"] == other["latents"]
    untuned, again, full, after = one["latents"]
    assert untuned == again == after != full
    assert all("LookupError: nobody expects it" in state for state in (*one["states"], *other["states"]))
