"""The reference pipelines as cases: where each lies, what to ask of it, and what judges the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reference import captions, checker, load
from reference.drawing import Array
from reference.faces import checker as faces_checker
from reference.faces import people
from reference.video import captions as video_captions
from reference.video import checker as video_checker

__all__ = ["CASES", "CLIPS", "DISTILLED_IMAGES", "FACES", "IMAGES", "UNET_IMAGES", "Case"]

BATCH_SIZE = 10


@dataclass(frozen=True, kw_only=True)
class Case:
    """One reference pipeline with what asks and judges it.

    Attributes:
        name: of the folder with the weights.
        unit: what it makes, "image" or "clip".
        find: (folder or None) -> the folder with the weights.
        load: (folder) -> the pipeline.
        sampling: arguments of its calls.
        guidance: name of the argument that holds the guidance.
        output: name of the field of the result that holds the images or clips.
        held_out: (count, seed) -> scenes that training never saw.
        caption: (scene) -> prompt.
        check: (scene, image or clip) -> which of the scene's attributes it shows.
    """

    name: str
    unit: str
    find: Callable[[Path | None], Path]
    load: Callable[..., Any]
    sampling: Mapping[str, Any]
    guidance: str
    output: str
    held_out: Callable[..., list[Any]]
    caption: Callable[[Any], str]
    check: Callable[[Any, Array], dict[str, bool]]

    def generate(self, pipeline: Any, prompts: Sequence[str], seeds: Sequence[int], **overrides: Any) -> Array:
        """Images (B, H, W, 3) or clips (B, F, H, W, 3) in 0..1, one prompt and seed each.

        Args:
            pipeline: called in batches.
            prompts, seeds: of the same length; the seed decides the noise.
            overrides: go over `sampling`.
        """
        made = []
        for start in range(0, len(prompts), BATCH_SIZE):
            chunk = list(prompts[start : start + BATCH_SIZE])
            call = {**self.sampling, **overrides}
            if isinstance(call.get("negative_prompt"), str):
                call["negative_prompt"] = [call["negative_prompt"]] * len(chunk)
            generators = [torch.Generator().manual_seed(seed) for seed in seeds[start : start + BATCH_SIZE]]
            made.append(getattr(pipeline(chunk, generator=generators, output_type="np", **call), self.output))
        return np.concatenate(made)


IMAGES = Case(
    name="shapes-flux",
    unit="image",
    find=load.find_image_pipeline,
    load=load.load_image_pipeline,
    sampling=load.SAMPLING,
    guidance="true_cfg_scale",
    output="images",
    held_out=captions.held_out_scenes,
    caption=captions.caption,
    check=checker.check,
)

CLIPS = Case(
    name="shapes-wan",
    unit="clip",
    find=load.find_video_pipeline,
    load=load.load_video_pipeline,
    sampling=load.VIDEO_SAMPLING,
    guidance="guidance_scale",
    output="frames",
    held_out=video_captions.held_out_scenes,
    caption=video_captions.caption,
    check=video_checker.check,
)

UNET_IMAGES = Case(
    name="shapes-sd",
    unit="image",
    find=load.find_unet_pipeline,
    load=load.load_unet_pipeline,
    sampling=load.UNET_SAMPLING,
    guidance="guidance_scale",
    output="images",
    held_out=captions.held_out_scenes,
    caption=captions.caption,
    check=checker.check,
)

DISTILLED_IMAGES = Case(
    name="shapes-dev",
    unit="image",
    find=load.find_distilled_pipeline,
    load=load.load_distilled_pipeline,
    sampling=load.DISTILLED_SAMPLING,
    guidance="guidance_scale",
    output="images",
    held_out=captions.held_out_scenes,
    caption=captions.caption,
    check=checker.check,
)

FACES = Case(
    name="faces",
    unit="image",
    find=load.find_faces_pipeline,
    load=load.load_faces_pipeline,
    sampling=load.FACES_SAMPLING,
    guidance="true_cfg_scale",
    output="images",
    held_out=people.held_out_people,
    caption=people.caption,
    check=faces_checker.check,
)

#: All reference pipelines by name.
CASES = {case.name: case for case in (IMAGES, CLIPS, UNET_IMAGES, DISTILLED_IMAGES, FACES)}
