from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the reference pipeline as it is before training."""
    from reference.models import FlowModel, new_autoencoder
    from reference.train.image import export_images

    torch.manual_seed(0)
    target = tmp_path_factory.mktemp("models") / "untrained"
    export_images(new_autoencoder(), FlowModel().eval(), target)
    return target
