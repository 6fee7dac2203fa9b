import shutil

import pytest
import torch
from diffusers import FluxPipeline

from omnireuse.errors import ConfigError
from reference import SAMPLING, load_image_pipeline
from reference.load import PATH_VARIABLE, find_image_pipeline
from reference.train.flow import train_flow
from reference.train.image import FLOW

# torch says that bfloat16 activations over float32 RMSNorm weights take its slower kernel; the result is what is meant.
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


@pytest.fixture(scope="module")
def trained(train):
    return train(
        "shapes-flux",
        "--text-steps=2",
        "--flow-steps=3",
        autoencoder={"batch_size": 1, "num_measured": 32},
        text={"batch_size": 8},
        flow={"batch_size": 4, "checkpoint_every": 2},
    )


@pytest.fixture(scope="module")
def run_folder(trained):
    return trained[0]


@pytest.fixture(scope="module")
def exported(trained):
    return trained[1]


def test_a_stopped_run_goes_on_from_its_checkpoint(run_folder, tmp_path):
    folder = tmp_path / "again"
    shutil.copytree(run_folder, folder)
    before = torch.load(folder / "flow-resume.pt", weights_only=True)
    train_flow(FLOW, folder, num_steps=4, num_scenes=32, batch_size=4, compile_model=False)
    after = torch.load(folder / "flow-resume.pt", weights_only=True)
    assert (before["step"], after["step"]) == (3, 4)
    assert int(after["average"]["n_averaged"]) == 4


def test_the_export_is_a_flux_pipeline_in_float32(exported):
    pipeline = load_image_pipeline(exported)
    assert type(pipeline) is FluxPipeline
    models = (pipeline.transformer, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2)
    assert {model.dtype for model in models} == {torch.float32}
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline(
        ["a red circle", "a"], **SAMPLING | {"num_inference_steps": 2, "negative_prompt": ["", ""]}
    ).images
    assert [image.size for image in images] == [(64, 64)] * 2


def test_a_directory_without_weights_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"path must be a directory with a model_index\.json"):
        find_image_pipeline(tmp_path)
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=rf"{PATH_VARIABLE} must be a directory"):
        load_image_pipeline()
