"""``python -m reference.evaluate``: how well a reference pipeline shows what a caption says, and how fast.

Captions are held out from training. With ``--card`` the figures and some samples go into the model card beside the
weights. Needs the ``report`` extra.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from omnireuse.pipelines.pictures import capped_psnr
from reference.case import BATCH_SIZE, CASES, CLIPS, IMAGES, Case
from reference.drawing import Array

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured; shares are in 0..1, PSNR in dB over images or whole clips in 0..1."""

    num_captions: int
    attributes_right: float
    captions_right: float
    right_by_attribute: dict[str, float]
    seconds_each: float
    num_threads: int
    num_psnr_prompts: int
    psnr_guided: float
    psnr_unguided: float
    weight_bytes: int


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


def step_sensitivity(case: Case, pipeline: Any, scenes: Sequence[Any], **overrides: Any) -> float:
    """Mean PSNR of half the steps against all of them, same seeds: the distance that a cache has to beat."""
    prompts, seeds = [case.caption(scene) for scene in scenes], range(len(scenes))
    full = case.generate(pipeline, prompts, seeds, **overrides)
    halved = overrides | {"num_inference_steps": case.sampling["num_inference_steps"] // 2}
    half = case.generate(pipeline, prompts, seeds, **halved)
    return float(np.mean([capped_psnr(a, b) for a, b in zip(half, full, strict=True)]))


def weight_bytes(pipeline: Any) -> int:
    """Bytes of a pipeline's weights in files, which hold them in half precision."""
    modules = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    return sum(2 * weight.numel() for module in modules for weight in module.parameters())


def measure(case: Case, pipeline: Any, *, num_captions: int, num_psnr_prompts: int) -> tuple[Figures, Array]:
    """All figures of ``pipeline``, and the images or clips that its scores were read from."""
    pipeline.set_progress_bar_config(disable=True)
    scenes = case.held_out(num_captions)
    prompts, seeds = [case.caption(scene) for scene in scenes], range(1000, 1000 + num_captions)
    batches = [slice(start, start + BATCH_SIZE) for start in range(0, num_captions, BATCH_SIZE)]
    made = np.concatenate(
        [case.generate(pipeline, prompts[batch], seeds[batch]) for batch in track(batches, "held-out captions")]
    )
    attributes_right, captions_right, by_attribute = score(scenes, made, case.check)
    start = time.perf_counter()
    for prompt in prompts[:5]:
        pipeline(prompt, **case.sampling)
    seconds = (time.perf_counter() - start) / len(prompts[:5])
    figures = Figures(
        num_captions=num_captions,
        attributes_right=attributes_right,
        captions_right=captions_right,
        right_by_attribute=by_attribute,
        seconds_each=seconds,
        num_threads=torch.get_num_threads(),
        num_psnr_prompts=num_psnr_prompts,
        psnr_guided=step_sensitivity(case, pipeline, scenes[:num_psnr_prompts]),
        psnr_unguided=step_sensitivity(case, pipeline, scenes[:num_psnr_prompts], **{case.guidance: 1.0}),
        weight_bytes=weight_bytes(pipeline),
    )
    return figures, made


def main() -> None:
    """Measure, print, and write the card where asked to."""
    parser = argparse.ArgumentParser(prog="python -m reference.evaluate", description=__doc__)
    parser.add_argument("--pipeline", choices=CASES, default=IMAGES.name)
    parser.add_argument("--path", type=Path, default=None, help="directory of the weights (default: the checkout's)")
    parser.add_argument("--captions", type=int, help="held-out captions to draw (default: 200, of clips all 132)")
    parser.add_argument(
        "--psnr-prompts", type=int, help="prompts for half the steps against all (default: 200, of clips 60)"
    )
    parser.add_argument("--card", action="store_true", help="write README.md and samples.png beside the weights")
    args = parser.parse_args()

    case = CASES[args.pipeline]
    num_captions, num_psnr_prompts = (132, 60) if case is CLIPS else (200, 200)
    if args.captions is not None:
        num_captions = args.captions
    if args.psnr_prompts is not None:
        num_psnr_prompts = args.psnr_prompts
    folder = case.find(args.path)
    figures, made = measure(case, case.load(folder), num_captions=num_captions, num_psnr_prompts=num_psnr_prompts)
    from reference.card import figures_table, write_card

    Console().print(figures_table(case, figures), markup=False, soft_wrap=True)
    if args.card:
        write_card(case, folder, figures, made)


if __name__ == "__main__":
    main()
