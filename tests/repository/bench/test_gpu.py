import json

import pytest
import torch

from bench import gpu
from bench._true_size import MODELS
from omnireuse.loop.strategy import REGIONS


def rows_of(folder):
    return json.loads((folder / "gpu.json").read_text("utf-8"))["rows"]


def test_the_whole_path_runs_on_tiny_models(tmp_path):
    gpu.main(["--tiny", "--device", "cpu", "--steps", "6", "--repeats", "1", "--ways", "--out", str(tmp_path)])
    rows = rows_of(tmp_path)
    assert {row["model"] for row in rows} == set(MODELS)
    for model in rows:
        assert model["launches_full"] is None
        assert set(model["regions"]) == set(REGIONS)
        for row in model["regions"].values():
            assert row["steps_over_computed"] == pytest.approx(6 / 4)  # steps 0, 2, 4 and the last
            assert row["kept_bytes"] > 0
            assert row["launches_reused"] is None


def test_what_there_is_no_time_for_is_left_out_said_and_added_later(tmp_path, capsys):
    tiny = ["--tiny", "--device", "cpu", "--steps", "6", "--repeats", "1", "--ways", "--out", str(tmp_path)]
    gpu.main([*tiny, "--models", "flux.1", "qwen-image", "--seconds", "0"])
    assert not (tmp_path / "gpu.json").exists()
    assert "qwen-image, regions is left out: the seconds are over" in capsys.readouterr().out
    gpu.main([*tiny, "--models", "flux.1"])
    first = rows_of(tmp_path)
    gpu.main(tiny)
    rows = rows_of(tmp_path)
    assert {row["model"] for row in rows} == set(MODELS)
    assert rows[: len(first)] == first


def test_rows_of_another_device_stay(tmp_path):
    other = {"model": "flux.1", "part": "regions", "device": "other", "tiny": True, "full_step_ms": {"median": 1.0}}
    other |= {"launches_full": 1, "regions": {}}
    (tmp_path / "gpu.json").write_text(json.dumps({"rows": [other]}), "utf-8")
    tiny = ["--tiny", "--device", "cpu", "--steps", "6", "--repeats", "1", "--ways", "--models", "flux.1"]
    gpu.main([*tiny, "--out", str(tmp_path)])
    rows = rows_of(tmp_path)
    assert rows[0] == other
    assert [row["device"] for row in rows] == ["other", "cpu"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_launches_are_counted_on_cuda(tmp_path):
    gpu.main(["--tiny", "--models", "flux.1", "--steps", "6", "--repeats", "1", "--ways", "--out", str(tmp_path)])
    model = rows_of(tmp_path)[0]
    assert model["launches_full"] > model["regions"]["step"]["launches_reused"] > 0
