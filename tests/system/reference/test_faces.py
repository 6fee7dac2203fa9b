"""The reference pipeline of faces, from training to export."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

from reference import FACES_SAMPLING, load_faces_pipeline
from reference.case import FACES
from reference.evaluate import score
from reference.faces.people import (
    BEARDS,
    EXPRESSIONS,
    EYEWEAR,
    HAIR,
    caption,
    held_out_people,
)
from tests import TOP

pytest.importorskip("resvg_py")
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

#: In place of a person, which node would draw: a head on a shirt.
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 704 704"><circle cx="350" cy="300" r="200" fill="#010203"/>'
    '<rect y="600" width="704" height="104" fill="#070809"/></svg>'
)


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """``train all`` on 32 plain drawings, a step or two a stage -> (training folder, exported pipeline)."""
    keys = ["|".join(parts) for parts in product(HAIR, EXPRESSIONS, BEARDS, EYEWEAR)]
    svgs = tmp_path_factory.mktemp("svgs") / "people.json"
    svgs.write_text(json.dumps(dict.fromkeys(keys, SVG)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reference.train.faces.make_svgs", lambda folder: svgs)
        return train(
            "faces",
            "--pictures-steps=32",
            "--checker-steps=2",
            "--flow-steps=2",
            pictures={},
            autoencoder={"batch_size": 1, "num_measured": 32},
            checker={"batch_size": 8, "num_judged": 32},
            flow={"batch_size": 4},
        )


@pytest.mark.sweep
def test_the_export_is_a_flux_pipeline_that_draws(trained):
    pipeline = load_faces_pipeline(trained[1])
    assert type(pipeline) is FluxPipeline
    assert {model.dtype for model in (pipeline.transformer, pipeline.vae)} == {torch.float32}
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline("a sad person", **FACES_SAMPLING | {"num_inference_steps": 2}).images
    assert [image.size for image in images] == [(64, 64)]
    assert {path.name for path in trained[1].iterdir()} >= {"checker.safetensors", "drawn.png"}


@pytest.mark.skipif(not (TOP / "models" / "faces").exists(), reason="the weights are not in this checkout")
def test_the_committed_weights_draw_whom_captions_tell():
    pipeline = load_faces_pipeline()
    pipeline.set_progress_bar_config(disable=True)
    people = held_out_people(6, seed=77)
    made = FACES.generate(pipeline, [caption(person) for person in people], range(6))
    assert score(people, made, FACES.check)[0] > 0.8
    assert np.ptp(made) > 0.8
