from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omnireuse.compare.subject import Subject, guided_call
from omnireuse.demo.reference import CLIPS, IMAGES, Reference

Make = Callable[..., Subject]


def _maker(reference: Reference) -> Make:
    pipeline = reference.load_quietly(reference.find(None))
    rest = ("num_inference_steps", "negative_prompt", reference.guidance)
    call = {name: value for name, value in reference.sampling.items() if name not in rest}

    def make(*, steps: int = 6, guidance: float = 3.0, prompts: int = 2, **given: Any) -> Subject:
        tasks = reference.tasks(prompts, seed=9000)
        return Subject(
            name="tiny",
            pipeline=pipeline,
            steps=steps,
            guidance=guidance,
            prompts=tuple(task.prompt for task in tasks),
            seed=9000,
            call=call | guided_call(pipeline, guidance),
            checks=tuple(task.check for task in tasks if task.check is not None),
            **{"batch_size": 2, **given},
        )

    return make


@pytest.fixture(scope="session")
def images() -> Make:
    return _maker(IMAGES)


@pytest.fixture(scope="session")
def clips() -> Make:
    return _maker(CLIPS)
