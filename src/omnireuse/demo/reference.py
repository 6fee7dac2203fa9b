"""The reference image pipeline, ready to be compared: loading it, what to ask of it, and how to call it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from omnireuse.demo.compare import Image, Task
from omnireuse.errors import ConfigError
from omnireuse.reference.captions import caption, held_out_scenes
from omnireuse.reference.checker import check
from omnireuse.reference.scenes import IMAGE_SIZE
from omnireuse.reference.tokenizers import MAX_SEQUENCE_LENGTH

__all__ = ["held_out_tasks", "image_generator", "load_pipeline"]


def load_pipeline(folder: Path) -> Any:
    """The reference pipeline in `folder`, on the CPU, without progress bars of its own.

    Raises:
        ConfigError: there is no pipeline.
    """
    if not (folder / "model_index.json").is_file():
        raise ConfigError(
            f"demo(model={str(folder)!r}): model must be a folder with a trained reference pipeline "
            "(model_index.json is missing); run from the top of the repository, which holds one in models/shapes-flux, "
            "or train one: python -m omnireuse.reference.train all"
        )
    import diffusers
    import transformers

    # What these libraries say while loading (bars, an optional image processor that is not used) is not about the demo.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    diffusers.logging.disable_progress_bar()
    pipeline = diffusers.FluxPipeline.from_pretrained(folder, local_files_only=True)
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

    def generate(prompt: str, num_inference_steps: int, seed: int) -> Image:
        image: Image = pipeline(
            prompt=prompt,
            negative_prompt="" if guidance > 1.0 else None,
            true_cfg_scale=guidance,
            num_inference_steps=num_inference_steps,
            height=IMAGE_SIZE,
            width=IMAGE_SIZE,
            max_sequence_length=MAX_SEQUENCE_LENGTH,
            generator=torch.Generator().manual_seed(seed),
            output_type="np",
        ).images[0]
        return image

    return generate
