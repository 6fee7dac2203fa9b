from dataclasses import replace

import numpy as np
import pytest

from reference import load_video_pipeline
from reference.scenes import Thing
from reference.video.captions import (
    caption,
    held_out_scenes,
)
from reference.video.scenes import MovingScene, draw
from tests import TOP

pytest.importorskip("skimage")
from reference.video.checker import check

# torch says that bfloat16 activations over float32 RMSNorm weights take its slower kernel; the result is what is meant.
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

WEIGHTS = TOP / "models" / "shapes-wan"
SCENE = MovingScene(
    thing=Thing(shape="circle", colour="red", size="small"), direction="left", speed="quickly", background="gray"
)


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
