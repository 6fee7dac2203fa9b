"""ComfyUI in this process."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

IN_COMFYUI = [
    pytest.mark.integration,
    pytest.mark.skipif(
        "COMFYUI" not in os.environ, reason="needs ComfyUI; scripts/comfyui_venv.sh builds a venv that has it"
    ),
]


@pytest.fixture(scope="session")
def host() -> ModuleType:
    from engines.tests.hosts.comfyui import host

    return host


@pytest.fixture(scope="session")
def loaded(host: ModuleType) -> Any:
    return host.load_model()


@pytest.fixture(scope="session")
def shapes(host: ModuleType) -> Any:
    """The parts around the model."""
    from engines.tests.hosts.comfyui.shapes import Shapes

    return Shapes()


@pytest.fixture
def model(loaded: Any) -> Any:
    return loaded.clone()


@pytest.fixture(scope="session")
def nodes(host: ModuleType) -> dict[str, Any]:
    return host.nodes().NODE_CLASS_MAPPINGS


@pytest.fixture
def counted(host: ModuleType, loaded: Any) -> tuple[Any, Any]:
    """A model, and what counts its calls."""
    clone = loaded.clone()
    return clone, host.CallCounter(clone)
