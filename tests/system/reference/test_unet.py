"""The reference pipeline with a U-Net, from training to export."""

import pytest
import torch
from diffusers import StableDiffusionPipeline

from reference import UNET_SAMPLING, load_unet_pipeline
from reference.captions import held_out_scenes
from reference.case import UNET_IMAGES
from reference.evaluate import score
from reference.train.unet import MAX_WEIGHT, diffuse

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


@pytest.fixture(scope="module")
def trained(train):
    return train("shapes-sd", "--flow-steps=3", flow={"batch_size": 4, "checkpoint_every": 2})


@pytest.mark.sweep
def test_the_export_is_a_stable_diffusion_pipeline_that_draws(trained):
    pipeline = load_unet_pipeline(trained[1])
    assert type(pipeline) is StableDiffusionPipeline
    assert pipeline.scheduler.config.prediction_type == "epsilon"
    assert {model.dtype for model in (pipeline.unet, pipeline.vae, pipeline.text_encoder)} == {torch.float32}
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline("a red circle", **UNET_SAMPLING | {"num_inference_steps": 2}).images
    assert [image.size for image in images] == [(64, 64)]


def test_noisy_latents_hold_the_noise_that_they_name():
    clean = torch.randn(64, 8, 16, 16)
    example = diffuse(clean)
    assert example.level.min() < 30
    assert example.level.max() > 970
    kept = 1 / example.weight.view(-1)
    known = kept > 1 / MAX_WEIGHT
    rebuilt = kept.sqrt().view(-1, 1, 1, 1) * clean + (1 - kept).sqrt().view(-1, 1, 1, 1) * example.target
    assert known.sum() > 32
    torch.testing.assert_close(rebuilt[known], example.noisy[known], atol=1e-4, rtol=1e-4)


def test_the_committed_weights_draw_what_captions_say():
    pipeline = load_unet_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    scenes = held_out_scenes(8, seed=77)
    made = UNET_IMAGES.generate(pipeline, [UNET_IMAGES.caption(scene) for scene in scenes], range(8))
    assert score(scenes, made, UNET_IMAGES.check)[0] > 0.85
