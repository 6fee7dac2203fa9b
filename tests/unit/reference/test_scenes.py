import numpy as np
import pytest

from reference.captions import caption, held_out_scenes, is_held_out, sample_split, vocabulary
from reference.drawing import PATTERNS, SHAPES
from reference.scenes import IMAGE_SIZE, RELATIONS, Scene, Thing, draw, sample_scene

ONE = Scene(
    things=(Thing(shape="circle", colour="red", size="small"),),
    place="top left",
    relation=None,
    background="gray",
    pattern="plain",
)
TWO = Scene(
    things=(Thing(shape="cross", colour="blue", size="large"), Thing(shape="square", colour="white", size="small")),
    place=None,
    relation="above",
    background="teal",
    pattern="dotted",
)


def test_a_drawing_is_an_image_and_the_same_for_the_same_seed():
    first, again = (draw(TWO, np.random.default_rng(3)) for _ in range(2))
    assert first.shape == (IMAGE_SIZE, IMAGE_SIZE, 3)
    assert first.dtype == np.float32
    assert 0.0 <= first.min() < first.max() <= 1.0
    np.testing.assert_array_equal(first, again)


def test_what_the_caption_leaves_open_varies():
    rng = np.random.default_rng(0)
    assert np.abs(draw(ONE, rng) - draw(ONE, rng)).max() > 0.3


def test_scenes_cover_every_name():
    rng = np.random.default_rng(0)
    scenes = [sample_scene(rng) for _ in range(500)]
    assert {thing.shape for scene in scenes for thing in scene.things} == set(SHAPES)
    assert {scene.pattern for scene in scenes} == set(PATTERNS)
    assert {scene.relation for scene in scenes} == {None, *RELATIONS}
    assert all((scene.place is None) == (len(scene.things) == 2) for scene in scenes)


def test_the_plain_caption_names_every_attribute():
    assert caption(ONE) == "a small red circle in the top left on a plain gray background"
    assert caption(TWO) == "a large blue cross above a small white square on a dotted teal background"


def test_wordings_vary_within_the_vocabulary():
    rng = np.random.default_rng(0)
    captions = {caption(TWO, rng) for _ in range(300)}
    assert len(captions) == 16  # two templates, two sizes each with two wordings, one relation with two
    assert {word for text in captions for word in text.split()} <= set(vocabulary())


@pytest.mark.parametrize("held_out", [True, False])
def test_the_two_sides_of_the_split_never_meet(held_out):
    rng = np.random.default_rng(1)
    assert all(is_held_out(sample_split(rng, held_out=held_out)) == held_out for _ in range(50))


def test_the_split_looks_at_the_arrangement_and_not_at_the_background():
    from dataclasses import replace

    assert is_held_out(ONE) == is_held_out(replace(ONE, background="black", pattern="striped"))


def test_held_out_scenes_are_different_and_repeatable():
    scenes = held_out_scenes(60)
    assert len(set(scenes)) == 60
    assert scenes[:20] == held_out_scenes(20)
