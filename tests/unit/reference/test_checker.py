from dataclasses import replace

import numpy as np
import pytest

from reference.captions import held_out_scenes
from reference.scenes import Scene, Thing, draw

pytest.importorskip("skimage")
from reference.checker import check

PAIR = Scene(
    things=(Thing(shape="circle", colour="red", size="small"), Thing(shape="square", colour="green", size="large")),
    place=None,
    relation="left of",
    background="black",
    pattern="striped",
)


def test_drawn_scenes_are_read_back_right():
    rng = np.random.default_rng(5)
    wrong = [scene for scene in held_out_scenes(80) if not all(check(scene, draw(scene, rng)).values())]
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"background": "gray"}, {"background"}),
        ({"pattern": "plain"}, {"pattern"}),
        ({"relation": "above"}, {"relation"}),
        ({"things": (replace(PAIR.things[0], colour="blue"), PAIR.things[1])}, {"colour 1"}),
        ({"things": (PAIR.things[0], replace(PAIR.things[1], shape="cross"))}, {"shape 2"}),
        ({"things": (PAIR.things[0], replace(PAIR.things[1], size="small"))}, {"size 2"}),
    ],
)
def test_one_wrong_attribute_is_named(change, wrong):
    image = draw(PAIR, np.random.default_rng(2))
    verdict = check(replace(PAIR, **change), image)
    assert {name for name, right in verdict.items() if not right} == wrong
