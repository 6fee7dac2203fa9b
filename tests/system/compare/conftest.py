from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omnireuse.evaluation.compare.subject import Subject
from reference.case import CLIPS, IMAGES, Case
from reference.demo.reference import load_quietly
from reference.subject import reference_subject

Make = Callable[..., Subject]


def _maker(case: Case) -> Make:
    pipeline: Any = load_quietly(case, case.find(None))

    def make(**given: Any) -> Subject:
        asked = {"steps": 6, "guidance": 3.0, "prompts": 2, "seed": 9000, "batch_size": 2}
        return reference_subject(case, pipeline, **{**asked, **given})

    return make


@pytest.fixture(scope="session")
def images() -> Make:
    return _maker(IMAGES)


@pytest.fixture(scope="session")
def clips() -> Make:
    return _maker(CLIPS)
