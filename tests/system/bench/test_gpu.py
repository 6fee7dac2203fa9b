import json

import pytest
import torch

from bench import gpu
from bench._true_size import MODELS
from omnireuse.diffusion.reuse.strategy import REGIONS
from omnireuse.errors import ConfigError


def test_the_whole_path_runs_on_tiny_models(tmp_path):
    gpu.main(["--tiny", "--device", "cpu", "--steps", "6", "--repeats", "1", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "gpu.json").read_text())
    assert set(record["models"]) == set(MODELS)
    for model in record["models"].values():
        assert model["launches_full"] is None
        assert set(model["regions"]) == set(REGIONS)
        for row in model["regions"].values():
            assert row["steps_over_computed"] == pytest.approx(6 / 4)  # steps 0, 2, 4 and the last
            assert row["kept_bytes"] > 0
            assert row["launches_reused"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what to do where there is no CUDA device")
def test_without_cuda_it_says_so():
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        gpu.main([])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--device", "cpu"], "add --tiny"), (["--device", "cpu", "--tiny", "--steps", "2"], "at least 6")],
)
def test_what_cannot_be_measured_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        gpu.main(arguments)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_launches_are_counted_on_cuda(tmp_path):
    gpu.main(["--tiny", "--models", "flux.1", "--steps", "6", "--repeats", "1", "--out", str(tmp_path)])
    model = json.loads((tmp_path / "gpu.json").read_text())["models"]["flux.1"]
    assert model["launches_full"] > model["regions"]["step"]["launches_reused"] > 0
