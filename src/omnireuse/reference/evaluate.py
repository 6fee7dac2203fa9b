"""``python -m omnireuse.reference.evaluate``: how well the image pipeline draws what a caption says, and how fast.

Captions are held out from training. With ``--card`` the figures and a grid of samples go into the model card beside the
weights. Needs the ``report`` extra.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from omnireuse.reference.captions import caption, held_out_scenes
from omnireuse.reference.checker import check
from omnireuse.reference.drawing import Array
from omnireuse.reference.load import SAMPLING, find_image_pipeline, load_image_pipeline
from omnireuse.reference.scenes import Scene
from omnireuse.report.metrics import psnr

if TYPE_CHECKING:
    from diffusers import FluxPipeline

BATCH_SIZE = 10
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; shares are in 0..1, PSNR in dB over images in 0..1."""

    num_captions: int
    attributes_right: float
    captions_right: float
    right_by_attribute: dict[str, float]
    seconds_per_image: float
    num_threads: int
    num_psnr_prompts: int
    psnr_guided: float
    psnr_unguided: float
    weight_bytes: int


def generate(pipeline: FluxPipeline, prompts: list[str], seeds: list[int], **overrides: Any) -> Array:
    """Images (B, 64, 64, 3) in 0..1, one prompt and seed each; ``overrides`` go over `SAMPLING`."""
    images = []
    for start in range(0, len(prompts), BATCH_SIZE):
        chunk = prompts[start : start + BATCH_SIZE]
        arguments = SAMPLING | {"negative_prompt": [SAMPLING["negative_prompt"]] * len(chunk)} | overrides
        generators = [torch.Generator().manual_seed(seed) for seed in seeds[start : start + BATCH_SIZE]]
        images.append(pipeline(chunk, generator=generators, output_type="np", **arguments).images)
    return np.concatenate(images)


def score(
    scenes: Sequence[S], images: Array, check: Callable[[S, Array], dict[str, bool]]
) -> tuple[float, float, dict[str, float]]:
    """Share of all attributes right, share of scenes wholly right, and the share right of each attribute."""
    verdicts = [check(scene, image) for scene, image in zip(scenes, images, strict=True)]
    asked, right = Counter[str](), Counter[str]()
    for verdict in verdicts:
        for name, is_right in verdict.items():
            kind = name.split()[0]
            asked[kind] += 1
            right[kind] += is_right
    return (
        right.total() / asked.total(),
        sum(all(verdict.values()) for verdict in verdicts) / len(verdicts),
        {kind: right[kind] / asked[kind] for kind in asked},
    )


def step_sensitivity(pipeline: FluxPipeline, scenes: list[Scene], **overrides: Any) -> float:
    """Mean PSNR of half the steps against all of them, same seeds: the distance that a cache has to beat."""
    prompts, seeds = [caption(scene) for scene in scenes], list(range(len(scenes)))
    full = generate(pipeline, prompts, seeds, **overrides)
    half = generate(pipeline, prompts, seeds, **overrides, num_inference_steps=SAMPLING["num_inference_steps"] // 2)
    return float(np.mean([psnr(a, b) for a, b in zip(half, full, strict=True)]))


def measure(pipeline: FluxPipeline, folder: Path, *, num_captions: int, num_psnr_prompts: int) -> tuple[Figures, Array]:
    """All figures of ``pipeline``, and the images that its scores were read from."""
    pipeline.set_progress_bar_config(disable=True)
    scenes = held_out_scenes(num_captions)
    prompts, seeds = [caption(scene) for scene in scenes], list(range(1000, 1000 + num_captions))
    batches = track(range(0, num_captions, BATCH_SIZE), "held-out captions")
    images = np.concatenate(
        [generate(pipeline, prompts[i : i + BATCH_SIZE], seeds[i : i + BATCH_SIZE]) for i in batches]
    )
    attributes_right, captions_right, by_attribute = score(scenes, images, check)
    start = time.perf_counter()
    for prompt in prompts[:5]:
        pipeline(prompt, **SAMPLING)
    seconds = (time.perf_counter() - start) / len(prompts[:5])
    figures = Figures(
        num_captions=num_captions,
        attributes_right=attributes_right,
        captions_right=captions_right,
        right_by_attribute=by_attribute,
        seconds_per_image=seconds,
        num_threads=torch.get_num_threads(),
        num_psnr_prompts=num_psnr_prompts,
        psnr_guided=step_sensitivity(pipeline, scenes[:num_psnr_prompts]),
        psnr_unguided=step_sensitivity(pipeline, scenes[:num_psnr_prompts], true_cfg_scale=1.0),
        weight_bytes=sum(file.stat().st_size for file in folder.rglob("*.safetensors")),
    )
    return figures, images


def main() -> None:
    """Measure, print, and write the card where asked to."""
    parser = argparse.ArgumentParser(prog="python -m omnireuse.reference.evaluate", description=__doc__)
    parser.add_argument("--path", type=Path, default=None, help="directory of the weights (default: the checkout's)")
    parser.add_argument("--captions", type=int, default=200, help="held-out captions to draw")
    parser.add_argument("--psnr-prompts", type=int, default=200, help="prompts for half the steps against all")
    parser.add_argument("--card", action="store_true", help="write README.md and samples.png beside the weights")
    args = parser.parse_args()

    folder = find_image_pipeline(args.path)
    pipeline = load_image_pipeline(folder)
    figures, images = measure(pipeline, folder, num_captions=args.captions, num_psnr_prompts=args.psnr_prompts)
    from omnireuse.reference.card import figures_table, write_card

    Console().print(figures_table(figures), markup=False, soft_wrap=True)
    if args.card:
        write_card(folder, figures, images)


if __name__ == "__main__":
    main()
