from dataclasses import asdict, replace

import numpy as np
import pytest

from reference.faces.people import ATTRIBUTES, held_out_people, is_held_out, sample_person, sample_split
from tests import TOP

DRAWN = TOP / "models" / "faces" / "drawn.png"


@pytest.fixture(scope="module")
def drawn():
    """Held-out people, and their drawings as they lie beside the weights."""
    if not DRAWN.exists():
        pytest.skip("the weights are in the repository, not in the package")
    image = pytest.importorskip("PIL.Image")
    sheet = np.asarray(image.open(DRAWN), np.float32) / 255
    rows, columns = sheet.shape[0] // 64, sheet.shape[1] // 64
    pictures = sheet.reshape(rows, 64, columns, 64, 3).swapaxes(1, 2).reshape(-1, 64, 64, 3)
    return held_out_people(rows * columns, seed=1), pictures


def test_people_cover_every_value_of_every_attribute():
    rng = np.random.default_rng(0)
    people = [asdict(sample_person(rng)) for _ in range(300)]
    assert {name: {person[name] for person in people} for name in ATTRIBUTES} == {
        name: set(values) for name, values in ATTRIBUTES.items()
    }


def test_training_never_sees_a_held_out_look_on_whatever_background():
    rng = np.random.default_rng(2)
    people = [sample_split(rng, held_out=False) for _ in range(300)]
    assert not any(is_held_out(person) for person in people)
    assert all(is_held_out(replace(person, background="teal", shirt="red")) for person in held_out_people(20))


def test_drawn_people_are_read_back_right(drawn):
    from reference.faces.checker import check

    right = [right for person, picture in zip(*drawn, strict=True) for right in check(person, picture).values()]
    assert np.mean(right) > 0.98


def test_another_person_is_told_from_the_one_asked_for(drawn):
    from reference.faces.checker import check

    people, pictures = drawn
    others = [check(person, picture) for person, picture in zip(people, np.roll(pictures, 1, axis=0), strict=True)]
    assert not any(all(verdict.values()) for verdict in others)
    assert np.mean([right for verdict in others for right in verdict.values()]) < 0.5
