"""What checkers read in drawings is what was drawn, and one wrong attribute is named."""

from dataclasses import replace

import numpy as np
import pytest

from reference.captions import held_out_scenes
from reference.faces.people import held_out_people
from reference.scenes import Scene, Thing, draw
from reference.video import captions, scenes
from tests import TOP

pytest.importorskip("skimage")
from reference.checker import check
from reference.video.checker import check as check_clip

DRAWN = TOP / "models" / "faces" / "drawn.png"
PAIR = Scene(
    things=(Thing(shape="circle", colour="red", size="small"), Thing(shape="square", colour="green", size="large")),
    place=None,
    relation="left of",
    background="black",
    pattern="striped",
)
THING = Thing(shape="circle", colour="red", size="small")
MOVING = scenes.MovingScene(thing=THING, direction="left", speed="quickly", background="gray")


def test_drawn_scenes_and_clips_are_read_back_right():
    rng = np.random.default_rng(5)
    wrong = [scene for scene in held_out_scenes(80) if not all(check(scene, draw(scene, rng)).values())]
    assert len(wrong) <= 1, wrong
    moving = captions.held_out_scenes(40)
    assert all(all(check_clip(scene, scenes.draw(scene, rng)).values()) for scene in moving)


def test_drawn_people_are_read_back_right():
    if not DRAWN.exists():
        pytest.skip("the weights are in the repository, not in the package")
    from reference.faces.checker import check

    image = pytest.importorskip("PIL.Image")
    sheet = np.asarray(image.open(DRAWN), np.float32) / 255
    rows, columns = sheet.shape[0] // 64, sheet.shape[1] // 64
    pictures = sheet.reshape(rows, 64, columns, 64, 3).swapaxes(1, 2).reshape(-1, 64, 64, 3)
    people = held_out_people(rows * columns, seed=1)
    right = [
        right for person, picture in zip(people, pictures, strict=True) for right in check(person, picture).values()
    ]
    assert np.mean(right) > 0.98


@pytest.mark.parametrize(
    ("scene", "change", "wrong"),
    [
        (PAIR, {"background": "gray"}, "background"),
        (PAIR, {"pattern": "plain"}, "pattern"),
        (PAIR, {"relation": "above"}, "relation"),
        (PAIR, {"things": (replace(PAIR.things[0], colour="blue"), PAIR.things[1])}, "colour 1"),
        (PAIR, {"things": (PAIR.things[0], replace(PAIR.things[1], shape="cross"))}, "shape 2"),
        (PAIR, {"things": (PAIR.things[0], replace(PAIR.things[1], size="small"))}, "size 2"),
        (MOVING, {"background": "teal"}, "background"),
        (MOVING, {"direction": "right"}, "direction"),
        (MOVING, {"direction": "up"}, "direction"),
        (MOVING, {"speed": "slowly"}, "speed"),
        (MOVING, {"thing": replace(THING, colour="blue")}, "colour"),
        (MOVING, {"thing": replace(THING, shape="cross")}, "shape"),
        (MOVING, {"thing": replace(THING, size="large")}, "size"),
    ],
)
def test_one_wrong_attribute_is_named(scene, change, wrong):
    drawing, checking = (draw, check) if scene is PAIR else (scenes.draw, check_clip)
    verdict = checking(replace(scene, **change), drawing(scene, np.random.default_rng(2)))
    assert [name for name, right in verdict.items() if not right] == [wrong]
