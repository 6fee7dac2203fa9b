"""Weights that SGLang replaces: plans of the former ones serve no more, and serve again once they are back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.tests.hosts.sglang.conftest import IN_SGLANG, SHAPES_FLUX, Server
from engines.tests.hosts.sglang.test_tuning import Pictures, serve, tuning  # noqa: F401 - the fixture

pytestmark = IN_SGLANG


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """The checkpoint with other weights of the transformer."""
    folder = tmp_path / "others"
    shutil.copytree(SHAPES_FLUX, folder)
    for path in (folder / "transformer").glob("*.safetensors"):
        save_file({name: tensor * 0.97 for name, tensor in load_file(path).items()}, path)
    return folder


def update(server: Server, folder: Path) -> None:
    from sglang.multimodal_gen.runtime.post_training.weights_updater import WeightsUpdater

    done, said = WeightsUpdater(server.pipeline).update_weights_from_disk(str(folder), target_modules=["transformer"])
    assert done, said


@pytest.mark.usefixtures("tuning")
def test_plans_belong_to_the_weights_that_a_server_has(native: Server, plain: Pictures, others: Path) -> None:
    for seed in (1, 2, 3):
        serve(native, seed)
    picture, calls, _ = serve(native, 0)
    assert calls == 2 * 14
    try:
        update(native, others)
        full, _ = native.calls(0, reuse="off")
        assert not torch.equal(full, plain["native", 28])
        anew, _, figures = serve(native, 0)
        assert figures["omnireuse_pictures_measured"] == 1
        assert torch.equal(anew, full)
    finally:
        update(native, SHAPES_FLUX)
    again, calls, _ = serve(native, 0)
    assert calls == 2 * 14
    assert torch.equal(again, picture)


@pytest.mark.usefixtures("tuning")
def test_pictures_of_two_weights_are_not_measured_together(native: Server, plain: Pictures, others: Path) -> None:
    for seed in (1, 2):
        _, _, figures = serve(native, seed)
    assert figures["omnireuse_pictures_measured"] == 2
    try:
        update(native, others)
        _, _, figures = serve(native, 3)
        assert figures["omnireuse_pictures_measured"] == 1
    finally:
        update(native, SHAPES_FLUX)
