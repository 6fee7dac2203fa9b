from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omnireuse_lab.compare.workload import Workload
from reference.case import CLIPS, IMAGES, UNET_IMAGES, Case
from reference.workload import load_quietly, reference_workload
from tests.helpers.sources import modular, run

__all__ = ["clips", "images", "modular", "run", "unet_images"]

Make = Callable[..., Workload]


def _maker(case: Case) -> Make:
    pipeline: Any = load_quietly(case, case.find(None))

    def make(**given: Any) -> Workload:
        asked = {"steps": 6, "guidance": 3.0, "prompts": 2, "seed": 9000}
        return reference_workload(case, pipeline, **{**asked, **given})

    return make


@pytest.fixture(scope="session")
def images() -> Make:
    return _maker(IMAGES)


@pytest.fixture(scope="session")
def clips() -> Make:
    return _maker(CLIPS)


@pytest.fixture(scope="session")
def unet_images() -> Make:
    return _maker(UNET_IMAGES)
