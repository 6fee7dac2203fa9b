from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reference pipeline as it is before training."""
    from omnireuse.reference.models import FlowModel
    from omnireuse.reference.train.autoencoder import new_autoencoder
    from omnireuse.reference.train.export import export_pipeline

    torch.manual_seed(0)
    target = tmp_path_factory.mktemp("models") / "untrained"
    export_pipeline(new_autoencoder(), FlowModel().eval(), target)
    return target
