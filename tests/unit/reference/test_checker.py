from dataclasses import replace

import numpy as np
import pytest

from reference.captions import held_out_scenes
from reference.scenes import Scene, Thing, draw, sample_scene

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


def test_noise_satisfies_nothing_whole():
    rng = np.random.default_rng(0)
    verdicts = [check(sample_scene(rng), rng.random((64, 64, 3), dtype=np.float32)) for _ in range(10)]
    assert not any(all(verdict.values()) for verdict in verdicts)
    assert np.mean([right for verdict in verdicts for right in verdict.values()]) < 0.25


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


def test_things_swapped_in_the_image_are_a_wrong_relation_only():
    image = draw(replace(PAIR, things=PAIR.things[::-1]), np.random.default_rng(2))
    assert [name for name, right in check(PAIR, image).items() if not right] == ["relation"]


def test_a_missing_thing_is_wrong_in_all_its_attributes():
    single = Scene(
        things=PAIR.things[:1], place="centre", relation=None, background=PAIR.background, pattern=PAIR.pattern
    )
    verdict = check(PAIR, draw(single, np.random.default_rng(2)))
    assert {name for name, right in verdict.items() if not right} == {
        "number",
        "shape 2",
        "colour 2",
        "size 2",
        "relation",
    }
