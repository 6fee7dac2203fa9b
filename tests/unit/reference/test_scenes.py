import numpy as np
import pytest

from reference.captions import caption, is_held_out, sample_split, vocabulary
from reference.scenes import IMAGE_SIZE, Scene, Thing, draw

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


def test_wordings_vary_within_the_vocabulary():
    rng = np.random.default_rng(0)
    captions = {caption(TWO, rng) for _ in range(300)}
    assert len(captions) == 16  # two templates, two sizes each with two wordings, one relation with two
    assert {word for text in captions for word in text.split()} <= set(vocabulary())


@pytest.mark.parametrize("held_out", [True, False])
def test_the_two_sides_of_the_split_never_meet(held_out):
    rng = np.random.default_rng(1)
    assert all(is_held_out(sample_split(rng, held_out=held_out)) == held_out for _ in range(50))
