"""One prompt three times from the same noise: in full, with reuse, and with as few plain steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import omnireuse
from omnireuse.pipelines import Caller, Source, capped_psnr, without_bar

__all__ = ["demonstrate"]


def demonstrate(
    source: Source, prompt: str, *, steps: int, speedup: float, seed: int, call: Mapping[str, Any] | None, out: Path
) -> Iterator[str]:
    """Draw one prompt three times, and write "full.png", "reused.png" and "fewer.png" to a folder.

    Args:
        speedup: all steps divided by computed steps, ≥ 1.
        out: the folder, which is made.

    Returns:
        A line for each picture when it is there: computed steps, seconds and dB to the full run, at most 100. Then the
        summary of the reuse.
    """
    pipeline = source.load()
    caller, pictures = Caller(pipeline, [prompt], seed=seed, call=call or {}), []
    out.mkdir(parents=True, exist_ok=True)

    def draw(name: str, number: int) -> str:
        begun = time.perf_counter()
        with without_bar(pipeline):
            (picture,) = caller.pictures([0], strict=False, num_inference_steps=number)
        seconds = time.perf_counter() - begun
        pictures.append(picture)
        frame = picture if picture.ndim == 3 else picture[0]
        Image.fromarray((255 * np.clip(frame, 0, 1)).round().astype(np.uint8).squeeze()).save(out / f"{name}.png")
        distance = f", {capped_psnr(picture, pictures[0]):.1f} dB to the full run" if name != "full" else ""
        return f"in {seconds:.2f} s{distance}"

    yield f"{out / 'full.png'}: {steps} computed steps {draw('full', steps)}"
    with omnireuse.enable(pipeline, speedup=speedup, tune=False) as handle:
        said = draw("reused", steps)
        summary = handle.summary()
    yield f"{out / 'reused.png'}: {summary.computed_steps:g} computed steps {said}"
    few = max(round(summary.computed_steps), 1)
    yield f"{out / 'fewer.png'}: {few} computed steps {draw('fewer', few)}"
    yield str(summary)
