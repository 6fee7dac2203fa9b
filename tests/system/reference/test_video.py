from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers import WanPipeline

from omnireuse.errors import ConfigError
from reference import VIDEO_SAMPLING, load_video_pipeline
from reference.scenes import IMAGE_SIZE, Thing
from reference.tokenizers import token_ids
from reference.video.captions import (
    MAX_SEQUENCE_LENGTH,
    caption,
    held_out_scenes,
    is_held_out,
    sample_split,
)
from reference.video.models import VideoFlowModel
from reference.video.scenes import NUM_FRAMES, MovingScene, draw
from tests import TOP

pytest.importorskip("skimage")
from reference.video.checker import check

# torch says that bfloat16 activations over float32 RMSNorm weights take its slower kernel; the result is what is meant.
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

WEIGHTS = TOP / "models" / "shapes-wan"
SCENE = MovingScene(
    thing=Thing(shape="circle", colour="red", size="small"), direction="left", speed="quickly", background="gray"
)


@pytest.fixture(scope="module")
def trained(train):
    return train(
        "shapes-wan",
        "--flow-steps=3",
        autoencoder={"batch_size": 1, "num_measured": 32},
        flow={"batch_size": 4, "checkpoint_every": 2},
        decoder={"batch_size": 1},
    )


@pytest.fixture(scope="module")
def run_folder(trained):
    return trained[0]


@pytest.fixture(scope="module")
def exported(trained):
    return trained[1]


def test_the_two_sides_of_the_split_never_meet():
    rng = np.random.default_rng(1)
    for held_out in (True, False):
        assert all(is_held_out(sample_split(rng, held_out=held_out)) == held_out for _ in range(30))
    assert is_held_out(SCENE) == is_held_out(replace(SCENE, background="black"))
    scenes = held_out_scenes(132)
    assert len(set(scenes)) == 132
    assert scenes[:5] == held_out_scenes(5)
    with pytest.raises(ConfigError, match=r"held_out_scenes\(count=133\): count must be at most 132"):
        held_out_scenes(133)


def test_drawn_clips_are_read_back_right():
    rng = np.random.default_rng(5)
    wrong = [scene for scene in held_out_scenes(40) if not all(check(scene, draw(scene, rng)).values())]
    assert not wrong


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"background": "teal"}, {"background"}),
        ({"direction": "right"}, {"direction"}),
        ({"direction": "up"}, {"direction"}),
        ({"speed": "slowly"}, {"speed"}),
        ({"thing": replace(SCENE.thing, colour="blue")}, {"colour"}),
        ({"thing": replace(SCENE.thing, shape="cross")}, {"shape"}),
        ({"thing": replace(SCENE.thing, size="large")}, {"size"}),
    ],
)
def test_one_wrong_attribute_is_named(change, wrong):
    verdict = check(replace(SCENE, **change), draw(SCENE, np.random.default_rng(2)))
    assert {name for name, right in verdict.items() if not right} == wrong


@pytest.mark.sweep
def test_the_model_encodes_captions_as_the_pipeline_does(exported):
    pipeline = load_video_pipeline(exported)
    flow = VideoFlowModel().eval()
    flow.text_encoder.load_state_dict(pipeline.text_encoder.state_dict())
    flow.transformer.load_state_dict(pipeline.transformer.state_dict())
    captions = [caption(SCENE), ""]
    ids = token_ids(pipeline.tokenizer, captions)
    noise, sigma = torch.randn(2, 12, 3, 8, 8), torch.tensor([0.3, 0.9])
    with torch.no_grad():
        states, _ = pipeline.encode_prompt(captions, None, False, max_sequence_length=MAX_SEQUENCE_LENGTH)
        expected = pipeline.transformer(noise, 1000.0 * sigma, states, return_dict=False)[0]
        torch.testing.assert_close(flow(noise, sigma, ids), expected)


@pytest.mark.sweep
def test_the_export_is_a_wan_pipeline_in_float32(exported):
    pipeline = load_video_pipeline(exported)
    assert type(pipeline) is WanPipeline
    assert {m.dtype for m in (pipeline.transformer, pipeline.vae, pipeline.text_encoder)} == {torch.float32}
    pipeline.set_progress_bar_config(disable=True)
    frames = pipeline(
        ["a red circle", "a"],
        **VIDEO_SAMPLING | {"num_inference_steps": 2, "negative_prompt": ["", ""]},
        output_type="np",
    ).frames
    assert frames.shape == (2, NUM_FRAMES, IMAGE_SIZE, IMAGE_SIZE, 3)


@pytest.mark.skipif(not WEIGHTS.exists(), reason="the weights are in the repository, not in the package")
def test_the_committed_pipeline_shows_what_captions_say():
    from reference.case import CLIPS
    from reference.evaluate import score

    pipeline = load_video_pipeline(WEIGHTS)
    pipeline.set_progress_bar_config(disable=True)
    scenes = held_out_scenes(4)
    clips = CLIPS.generate(pipeline, [caption(scene) for scene in scenes], range(4))
    attributes_right, _, _ = score(scenes, clips, check)
    assert attributes_right >= 0.7
