"""A reference pipeline, ready to be compared: loading it, what to ask of it, and how to call it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from omnireuse.loading import quiet_loading
from reference.case import Case
from reference.demo.compare import Image, Task

__all__ = ["generator", "load_quietly", "tasks"]


def load_quietly(case: Case, folder: Path) -> Any:
    """The pipeline in `folder`, without messages of the libraries that load it; its own progress bar is off."""
    with quiet_loading():
        pipeline = case.load(folder, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def tasks(case: Case, count: int, *, seed: int) -> list[Task]:
    """`count` captions whose arrangement training never saw, each with noise of its own and its checker."""
    return [
        Task(prompt=case.caption(scene), seed=seed + number, check=partial(case.check, scene))
        for number, scene in enumerate(case.held_out(count, seed=seed))
    ]


def generator(case: Case, pipeline: Any, *, guidance: float) -> Callable[[str, int, int], Image]:
    """A function (prompt, number of steps, seed) -> image or clip in 0..1; `guidance` of 1 is none."""
    guided = {case.guidance: guidance} | ({} if guidance > 1.0 else {"negative_prompt": None})

    def generate(prompt: str, num_inference_steps: int, seed: int) -> Image:
        made: Image = case.generate(pipeline, [prompt], [seed], **guided, num_inference_steps=num_inference_steps)[0]
        return made

    return generate
