"""SGLang's CFG parallelism on two ranks: one branch of guidance each, one decision, and the picture of one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from engines.tests.hosts.sglang.conftest import IN_SGLANG
from tests import TOP

pytestmark = IN_SGLANG


def test_ranks_decide_alike_and_make_the_picture_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "engines.tests.hosts.sglang.forked", str(tmp_path)]
    done = subprocess.run(
        command, cwd=TOP, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = {file.stem: json.loads(file.read_text("utf-8")) for file in tmp_path.iterdir()}
    assert set(found) == {"alone-0", "cfg-0", "cfg-1"}, done.stderr[-3000:]
    assert [each["calls"] for each in found["alone-0"]][:2] == [48, 24]
    assert 0 < found["alone-0"][2]["calls"] < 48
    for rank in (0, 1):
        for each, alone in zip(found[f"cfg-{rank}"], found["alone-0"], strict=True):
            assert 2 * each["calls"] == alone["calls"]
            torch.testing.assert_close(torch.tensor(each["picture"]), torch.tensor(alone["picture"]), atol=1e-4, rtol=0)
