"""The reference pipelines, ready to be compared: loading them, what to ask of them, and how to call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from omnireuse.demo.compare import Image, Task
from omnireuse.reference import captions, checker, load
from omnireuse.reference.video import captions as video_captions
from omnireuse.reference.video import checker as video_checker

__all__ = ["CLIPS", "IMAGES", "Reference"]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One reference pipeline with what asks and judges it.

    Attributes:
        find: (folder or None) -> the folder with the weights.
        load: (folder) -> the pipeline.
        sampling: arguments of its calls.
        guidance: name of the argument that holds the guidance.
        output: name of the field of the result that holds the images or clips.
        held_out: (count, seed) -> scenes that training never saw.
        caption: (scene) -> prompt.
        check: (scene, image or clip) -> which of the scene's attributes it shows.
    """

    find: Callable[[Path | None], Path]
    load: Callable[..., Any]
    sampling: Mapping[str, Any]
    guidance: str
    output: str
    held_out: Callable[..., list[Any]]
    caption: Callable[[Any], str]
    check: Callable[[Any, Image], dict[str, bool]]

    def load_quietly(self, folder: Path) -> Any:
        """The pipeline in `folder`, without a word from the libraries that load it.

        Their bars, and their warnings about an image processor that is not used here, are not about the demo.
        """
        import diffusers
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        diffusers.logging.disable_progress_bar()
        pipeline = self.load(folder, local_files_only=True)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def tasks(self, count: int, *, seed: int) -> list[Task]:
        """`count` captions whose arrangement training never saw, each with noise of its own and its checker."""
        return [
            Task(prompt=self.caption(scene), seed=seed + number, check=partial(self.check, scene))
            for number, scene in enumerate(self.held_out(count, seed=seed))
        ]

    def generator(self, pipeline: Any, *, guidance: float) -> Callable[[str, int, int], Image]:
        """A function (prompt, number of steps, seed) -> image or clip in 0..1; `guidance` of 1 is none."""
        guided = {self.guidance: guidance} | ({} if guidance > 1.0 else {"negative_prompt": None})

        def generate(prompt: str, num_inference_steps: int, seed: int) -> Image:
            arguments = {**self.sampling, **guided, "num_inference_steps": num_inference_steps}
            noise = torch.Generator().manual_seed(seed)
            made: Image = getattr(pipeline(prompt, generator=noise, output_type="np", **arguments), self.output)[0]
            return made

        return generate


IMAGES = Reference(
    find=load.find_image_pipeline,
    load=load.load_image_pipeline,
    sampling=load.SAMPLING,
    guidance="true_cfg_scale",
    output="images",
    held_out=captions.held_out_scenes,
    caption=captions.caption,
    check=checker.check,
)

CLIPS = Reference(
    find=load.find_video_pipeline,
    load=load.load_video_pipeline,
    sampling=load.VIDEO_SAMPLING,
    guidance="guidance_scale",
    output="frames",
    held_out=video_captions.held_out_scenes,
    caption=video_captions.caption,
    check=video_checker.check,
)
