"""The reference pipeline with distilled guidance, from training to export."""

import pytest

from omnireuse.pipelines.pictures import psnr
from omnireuse_lab.compare.workload import guided_call, is_distilled
from reference import DISTILLED_SAMPLING, SAMPLING, load_distilled_pipeline, load_image_pipeline
from reference.captions import held_out_scenes
from reference.case import DISTILLED_IMAGES, IMAGES
from reference.evaluate import score

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


def test_guidance_of_a_distilled_model_is_the_argument_that_costs_no_second_branch():
    distilled, plain = load_distilled_pipeline(), load_image_pipeline()
    assert is_distilled(distilled)
    assert not is_distilled(plain)
    assert guided_call(distilled, 6.0) == {"guidance_scale": 6.0}
    assert guided_call(plain, 6.0) == {"true_cfg_scale": 6.0, "negative_prompt": ""}


@pytest.mark.slow
def test_the_committed_weights_draw_what_captions_say_and_what_the_teacher_draws():
    scenes = held_out_scenes(8, seed=77)
    captions, seeds = [IMAGES.caption(scene) for scene in scenes], range(8)
    distilled, teacher = load_distilled_pipeline(), load_image_pipeline()
    for pipeline in (distilled, teacher):
        pipeline.set_progress_bar_config(disable=True)
    made = DISTILLED_IMAGES.generate(distilled, captions, seeds)
    assert score(scenes, made, DISTILLED_IMAGES.check)[0] > 0.85
    strength = DISTILLED_SAMPLING["guidance_scale"]
    guided = IMAGES.generate(teacher, captions, seeds, true_cfg_scale=strength)
    plain = IMAGES.generate(teacher, captions, seeds, **SAMPLING | {"true_cfg_scale": 1.0, "negative_prompt": None})
    closer = [psnr(a, b) > psnr(a, c) for a, b, c in zip(made, guided, plain, strict=True)]
    assert sum(closer) >= 7
