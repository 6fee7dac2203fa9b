"""The reference image pipeline, ready to be compared: loading it, what to ask of it, and how to call it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from omnireuse.demo.compare import Image, Task
from omnireuse.reference.captions import caption, held_out_scenes
from omnireuse.reference.checker import check
from omnireuse.reference.load import SAMPLING, load_image_pipeline

__all__ = ["held_out_tasks", "image_generator", "load_quietly"]


def load_quietly(folder: Path) -> Any:
    """The reference pipeline in `folder`, without a word from the libraries that load it.

    Their bars, and their warnings about an image processor that is not used here, are not about the demo.
    """
    import diffusers
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    diffusers.logging.disable_progress_bar()
    pipeline = load_image_pipeline(folder, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def held_out_tasks(count: int, *, seed: int) -> list[Task]:
    """`count` captions whose arrangement training never saw, each with noise of its own and its checker."""
    return [
        Task(prompt=caption(scene), seed=seed + number, check=partial(check, scene))
        for number, scene in enumerate(held_out_scenes(count, seed=seed))
    ]


def image_generator(pipeline: Any, *, guidance: float) -> Callable[[str, int, int], Image]:
    """A function (prompt, number of steps, seed) -> image (64, 64, 3) in 0..1; `guidance` of 1 is none."""
    guided = {"true_cfg_scale": guidance} | ({} if guidance > 1.0 else {"negative_prompt": None})

    def generate(prompt: str, num_inference_steps: int, seed: int) -> Image:
        arguments = SAMPLING | guided | {"num_inference_steps": num_inference_steps}
        noise = torch.Generator().manual_seed(seed)
        image: Image = pipeline(prompt, generator=noise, output_type="np", **arguments).images[0]
        return image

    return generate
