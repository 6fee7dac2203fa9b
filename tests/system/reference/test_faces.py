"""The reference pipeline of faces, from training to export."""

import numpy as np
import pytest

from reference import load_faces_pipeline
from reference.case import FACES
from reference.evaluate import score
from reference.faces.people import (
    caption,
    held_out_people,
)
from tests import TOP

pytest.importorskip("resvg_py")
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")


@pytest.mark.skipif(not (TOP / "models" / "faces").exists(), reason="the weights are not in this checkout")
def test_the_committed_weights_draw_whom_captions_tell():
    pipeline = load_faces_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    people = held_out_people(6, seed=77)
    made = FACES.generate(pipeline, [caption(person) for person in people], range(6))
    assert score(people, made, FACES.check)[0] > 0.8
    assert np.ptp(made) > 0.8
