"""The folders of the weights: every part is there once, in a folder or in `shared.json`."""

from __future__ import annotations

import hashlib

import torch

from reference.load import load_faces_pipeline, load_few_steps_edit_pipeline
from tests import TOP


def test_no_weights_are_kept_twice() -> None:
    files = list((TOP / "models").rglob("*.safetensors"))
    assert len({hashlib.sha256(file.read_bytes()).digest() for file in files}) == len(files) > 10


def test_a_part_of_another_model_is_loaded_as_asked_for() -> None:
    pipe = load_few_steps_edit_pipeline(dtype=torch.float16)
    assert {part.dtype for part in (pipe.vae, pipe.text_encoder, pipe.transformer)} == {torch.float16}
    of = load_faces_pipeline(dtype=torch.float16).vae.state_dict()
    assert all(torch.equal(weight, of[name]) for name, weight in pipe.vae.state_dict().items())
