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


@pytest.fixture(scope="session")
def video_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for the video pipeline."""
    from omnireuse.reference.train.video.export import export_video_pipeline
    from omnireuse.reference.video.models import VideoFlowModel, new_autoencoder

    torch.manual_seed(0)
    target = tmp_path_factory.mktemp("models") / "untrained-clips"
    export_video_pipeline(new_autoencoder(), VideoFlowModel().eval(), target)
    return target
