"""One prompt three times from the same noise: in full, with reuse, and with as few plain steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import omnireuse
from omnireuse.pipelines.bars import without_bar
from omnireuse.pipelines.call import Caller
from omnireuse.pipelines.closeness import capped_psnr
from omnireuse.pipelines.pictures import Picture
from omnireuse.pipelines.source import Source

__all__ = ["Drawn", "demonstrate"]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One of the three pictures.

    Attributes:
        name: "full", "reused" or "fewer".
        file: the picture, or the first frame of the clip.
        steps: computed denoising steps.
        seconds: wall-clock of the call.
        psnr: dB to the full run, at most 100; None for the full run.
    """

    name: str
    file: Path
    steps: float
    seconds: float
    psnr: float | None


def demonstrate(
    source: Source,
    prompt: str,
    *,
    steps: int = 28,
    speedup: float = 2.0,
    seed: int = 0,
    call: Mapping[str, Any] | None = None,
    out: Path = Path("out/demo"),
) -> tuple[list[Drawn], omnireuse.Summary]:
    """Draw one prompt three times, and write the pictures to a folder.

    Args:
        speedup: all steps divided by computed steps, ≥ 1.
        out: the folder, which is made.
    """
    from PIL import Image

    pipeline = source.load()
    caller = Caller(pipeline, [prompt], seed=seed, call=call or {})
    drawn: list[Drawn] = []
    pictures: list[Picture] = []

    def draw(name: str, number: int) -> None:
        begun = time.perf_counter()
        (picture,) = caller.pictures([0], strict=False, num_inference_steps=number)
        seconds = time.perf_counter() - begun
        pictures.append(picture)
        frame = picture if picture.ndim == 3 else picture[0]
        file = out / f"{name}.png"
        Image.fromarray((255 * np.clip(frame, 0, 1)).round().astype(np.uint8).squeeze()).save(file)
        psnr = capped_psnr(picture, pictures[0]) if drawn else None
        drawn.append(Drawn(name=name, file=file, steps=number, seconds=seconds, psnr=psnr))

    out.mkdir(parents=True, exist_ok=True)
    with without_bar(pipeline):
        draw("full", steps)
        with omnireuse.enable(pipeline, speedup=speedup, tune=False) as handle:
            draw("reused", steps)
        summary = handle.summary()
        drawn[-1] = replace(drawn[-1], steps=summary.computed_steps)
        draw("fewer", max(round(summary.computed_steps), 1))
    return drawn, summary
