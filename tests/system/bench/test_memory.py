"""True size on a device that has none of it: nothing mixes devices, and nothing is read back that need not be."""

import json
import os
import subprocess
import sys

import pytest

SCHEDULES = {"default, speedup=2", "tuned plan", "MagCache", "TaylorSeer, order 2", "wave of 4"}


@pytest.mark.slow
def test_flux_at_its_true_size(tmp_path):
    # In a process of its own: a device that torch knows stays known.
    command = [sys.executable, "-m", "bench", "memory", "--models", "flux.1", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMNIREUSE_TUNE": "0"})
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "memory.json").read_text())["models"]["flux.1"]
    assert all(row["decisions"] > row["reused"] > 0 for row in rows.values())
    kept = {label: row["kept_bytes"] / 2**20 for label, row in rows.items()}
    # Two values in float32 and the placeholder in bfloat16; two values of both streams.
    assert kept["region step"] == pytest.approx(2.5, abs=0.01)
    assert kept["region blocks"] == pytest.approx(54, abs=0.01)
    assert kept["TaylorSeer, order 2"] == pytest.approx(81, abs=0.01)
    # Every run but a wave's is asked once, at its end, whether its latents are finite.
    reads = {label: row["reads"] - (label != "wave of 4") for label, row in rows.items()}
    assert not any(number for label, number in reads.items() if label in SCHEDULES or label.startswith("region"))
    # One for each decision on a signal; one for each forecast that is compared with the truth.
    assert reads["TeaCache"] == reads["DBCache"] == rows["TeaCache"]["decisions"] - 1
    measured = rows["tolerance=0.05"]
    assert 0 < reads["tolerance=0.05"] < measured["decisions"] - measured["reused"]
