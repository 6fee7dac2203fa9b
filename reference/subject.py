"""The reference pipelines as subjects: held-out captions, and the checkers that read the pictures."""

from __future__ import annotations

from typing import Any

from omnireuse.evaluation.compare.subject import Subject, guided_call
from reference.case import Case
from reference.demo.reference import tasks

__all__ = ["reference_subject"]


def reference_subject(
    case: Case, pipeline: Any, *, steps: int, guidance: float, prompts: int, seed: int, batch_size: int
) -> Subject:
    """One case with captions that training never saw; `seed` decides them and the noise."""
    asked = tasks(case, prompts, seed=seed)
    rest = ("num_inference_steps", "negative_prompt", case.guidance)
    return Subject(
        name=case.name,
        pipeline=pipeline,
        steps=steps,
        guidance=guidance,
        prompts=tuple(task.prompt for task in asked),
        seed=seed,
        call={name: value for name, value in case.sampling.items() if name not in rest}
        | guided_call(pipeline, guidance),
        checks=tuple(task.check for task in asked if task.check is not None),
        batch_size=batch_size,
    )
