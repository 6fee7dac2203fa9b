import json

import pytest
import torch

from bench import gpu
from bench._true_size import MODELS
from omnireuse.errors import ConfigError
from omnireuse.loop.strategy import REGIONS


def test_the_whole_path_runs_on_tiny_models(tmp_path):
    gpu.main(["--tiny", "--device", "cpu", "--steps", "6", "--repeats", "1", "--ways", "--out", str(tmp_path)])
    assert "qwen-im" in (tmp_path / "gpu.html").read_text()
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert set(record["models"]) == set(MODELS)
    for model in record["models"].values():
        assert model["launches_full"] is None
        assert set(model["regions"]) == set(REGIONS)
        for row in model["regions"].values():
            assert row["steps_over_computed"] == pytest.approx(6 / 4)  # steps 0, 2, 4 and the last
            assert row["kept_bytes"] > 0
            assert row["launches_reused"] is None


def test_what_there_is_no_time_for_is_left_out_and_said(tmp_path):
    tiny = ["--tiny", "--device", "cpu", "--steps", "6", "--repeats", "1", "--minutes", "0"]
    gpu.main([*tiny, "--models", "flux.1", "qwen-image", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert (record["models"], record["left_out"]) == ({}, ["flux.1", "qwen-image"])
    assert "qwen-image left out: the minutes are over" in (tmp_path / "gpu.html").read_text()
    # A later call adds what was left out, and measures nothing twice.
    gpu.main([*tiny[:-2], "--models", "flux.1", "--ways", "--out", str(tmp_path)])
    first = json.loads((tmp_path / "gpu.json").read_text())["models"]["flux.1"]
    gpu.main([*tiny[:-2], "--ways", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert set(record["models"]) == set(MODELS)
    assert record["models"]["flux.1"] == first
    assert len(record["commands"]) == 3


def test_a_record_of_another_machine_is_refused(tmp_path):
    (tmp_path / "gpu.json").write_text(json.dumps({"commands": [], "environment": {"device": "other"}, "models": {}}))
    with pytest.raises(ConfigError, match="measured elsewhere"):
        gpu.main(["--tiny", "--device", "cpu", "--out", str(tmp_path)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_launches_are_counted_on_cuda(tmp_path):
    gpu.main(["--tiny", "--models", "flux.1", "--steps", "6", "--repeats", "1", "--out", str(tmp_path)])
    model = json.loads((tmp_path / "gpu.json").read_text())["models"]["flux.1"]
    assert model["launches_full"] > model["regions"]["step"]["launches_reused"] > 0
