"""The reference pipeline with a U-Net, from training to export."""

import pytest

from reference import load_unet_pipeline
from reference.captions import held_out_scenes
from reference.case import UNET_IMAGES
from reference.evaluate import score

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def test_the_committed_weights_draw_what_captions_say():
    pipeline = load_unet_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    scenes = held_out_scenes(8, seed=77)
    made = UNET_IMAGES.generate(pipeline, [UNET_IMAGES.caption(scene) for scene in scenes], range(8))
    assert score(scenes, made, UNET_IMAGES.check)[0] > 0.85
