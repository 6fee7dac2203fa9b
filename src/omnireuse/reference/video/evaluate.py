"""``python -m omnireuse.reference.video.evaluate``: how well the video pipeline follows a caption, and how fast.

Captions are held out from training. With ``--card`` the figures and some samples go into the model card beside the
weights. Needs the ``report`` extra.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from omnireuse.reference.drawing import Array
from omnireuse.reference.evaluate import score
from omnireuse.reference.load import VIDEO_SAMPLING, find_video_pipeline, load_video_pipeline
from omnireuse.reference.video.captions import caption, held_out_scenes
from omnireuse.reference.video.checker import check
from omnireuse.reference.video.scenes import MovingScene
from omnireuse.report.metrics import mean_psnr, psnr

if TYPE_CHECKING:
    from diffusers import WanPipeline

BATCH_SIZE = 10


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; shares are in 0..1, PSNR in dB over all frames of clips in 0..1."""

    num_captions: int
    attributes_right: float
    captions_right: float
    right_by_attribute: dict[str, float]
    seconds_per_clip: float
    num_threads: int
    num_psnr_prompts: int
    psnr_guided: float
    psnr_unguided: float
    weight_bytes: int


def generate(pipeline: WanPipeline, prompts: list[str], seeds: list[int], **overrides: Any) -> Array:
    """Clips (B, 9, 64, 64, 3) in 0..1, one prompt and seed each; ``overrides`` go over `VIDEO_SAMPLING`."""
    clips = []
    for start in range(0, len(prompts), BATCH_SIZE):
        chunk = prompts[start : start + BATCH_SIZE]
        arguments = VIDEO_SAMPLING | {"negative_prompt": [VIDEO_SAMPLING["negative_prompt"]] * len(chunk)} | overrides
        generators = [torch.Generator().manual_seed(seed) for seed in seeds[start : start + BATCH_SIZE]]
        clips.append(pipeline(chunk, generator=generators, output_type="np", **arguments).frames)
    return np.concatenate(clips)


def step_sensitivity(pipeline: WanPipeline, scenes: list[MovingScene], **overrides: Any) -> float:
    """Mean PSNR of half the steps against all of them, same seeds: the distance that a cache has to beat."""
    prompts, seeds = [caption(scene) for scene in scenes], list(range(len(scenes)))
    full = generate(pipeline, prompts, seeds, **overrides)
    halved = overrides | {"num_inference_steps": VIDEO_SAMPLING["num_inference_steps"] // 2}
    half = generate(pipeline, prompts, seeds, **halved)
    return mean_psnr(psnr(a, b) for a, b in zip(half, full, strict=True))


def measure(pipeline: WanPipeline, folder: Path, *, num_captions: int, num_psnr_prompts: int) -> tuple[Figures, Array]:
    """All figures of ``pipeline``, and the clips that its scores were read from."""
    pipeline.set_progress_bar_config(disable=True)
    scenes = held_out_scenes(num_captions)
    prompts, seeds = [caption(scene) for scene in scenes], list(range(1000, 1000 + num_captions))
    batches = track(range(0, num_captions, BATCH_SIZE), "held-out captions")
    clips = np.concatenate(
        [generate(pipeline, prompts[i : i + BATCH_SIZE], seeds[i : i + BATCH_SIZE]) for i in batches]
    )
    attributes_right, captions_right, by_attribute = score(scenes, clips, check)
    start = time.perf_counter()
    for prompt in prompts[:5]:
        pipeline(prompt, **VIDEO_SAMPLING)
    seconds = (time.perf_counter() - start) / len(prompts[:5])
    figures = Figures(
        num_captions=num_captions,
        attributes_right=attributes_right,
        captions_right=captions_right,
        right_by_attribute=by_attribute,
        seconds_per_clip=seconds,
        num_threads=torch.get_num_threads(),
        num_psnr_prompts=num_psnr_prompts,
        psnr_guided=step_sensitivity(pipeline, scenes[:num_psnr_prompts]),
        psnr_unguided=step_sensitivity(pipeline, scenes[:num_psnr_prompts], guidance_scale=1.0),
        weight_bytes=sum(file.stat().st_size for file in folder.rglob("*.safetensors")),
    )
    return figures, clips


def main() -> None:
    """Measure, print, and write the card where asked to."""
    parser = argparse.ArgumentParser(prog="python -m omnireuse.reference.video.evaluate", description=__doc__)
    parser.add_argument("--path", type=Path, default=None, help="directory of the weights (default: the checkout's)")
    parser.add_argument("--captions", type=int, default=132, help="held-out captions to draw (default: all)")
    parser.add_argument("--psnr-prompts", type=int, default=60, help="prompts for half the steps against all")
    parser.add_argument("--card", action="store_true", help="write README.md and samples.png beside the weights")
    args = parser.parse_args()

    folder = find_video_pipeline(args.path)
    pipeline = load_video_pipeline(folder)
    figures, clips = measure(pipeline, folder, num_captions=args.captions, num_psnr_prompts=args.psnr_prompts)
    from omnireuse.reference.video.card import figures_table, write_card

    Console().print(figures_table(figures), markup=False, soft_wrap=True)
    if args.card:
        write_card(folder, figures, clips)


if __name__ == "__main__":
    main()
