from __future__ import annotations

from typing import Any

import pytest

from reference.load import load_image_pipeline


@pytest.fixture(scope="session")
def modular() -> Any:
    """The reference image pipeline, run by the modular blocks of diffusers."""
    diffusers = pytest.importorskip("diffusers", minversion="0.36", reason="modular pipelines came with 0.36")
    parts = load_image_pipeline().components
    pipeline = diffusers.FluxModularPipeline(diffusers.FluxAutoBlocks())
    pipeline.update_components(**{name: parts[name] for name in pipeline.component_names if name in parts})
    return pipeline
