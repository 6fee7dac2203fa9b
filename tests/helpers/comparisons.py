"""A small made-up comparison for the tests of the report; its figures mean nothing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

from omnireuse.evaluation.report.clips import save_clip
from omnireuse.evaluation.report.pareto import Case, Full, Mean, Pareto, Point, Spread
from omnireuse.evaluation.report.results import Comparison, Mark, Sample, Variant

PROMPTS = (
    "a large red circle in the centre on a plain teal background",
    "a small blue cross left of a big <b>pink</b> square on a dotted gray background",
    "a striped brown background with a little white triangle above a large green circle",
)
STEPS = 28


def marks(computed: set[int], branches: tuple[str, ...] = ("cond", "uncond")) -> tuple[Mark, ...]:
    return tuple(
        Mark(
            branch=branch,
            step=step,
            reused=step not in computed,
            reason={0: "first", STEPS - 1: "last"}.get(step, "policy"),
            drift=0.01 * step if step else None,
            error=0.5 / step if step and step in computed else None,
        )
        for step in range(STEPS)
        for branch in branches
    )


def _variant(index: int, name: str, role: str, computed: set[int], psnr: float, **more: object) -> Variant:
    samples = tuple(
        Sample(
            prompt=prompt,
            seed=number,
            image=f"images/{index}-{number}.png",
            seconds=(0.02 * len(computed) + 0.001 * number, 0.02 * len(computed) + 0.002),
            computed_steps=float(len(computed)),
            psnr=psnr + number,
            ssim=1.0 if math.isinf(psnr) else 0.98 - 0.01 * number,
            attributes={"shape": True, "colour": role != "floor", "place": number != 2},
            marks=marks(computed) if role == "cache" else (),
            retained_bytes=98_304 if role == "cache" else None,
        )
        for number, prompt in enumerate(PROMPTS)
    )
    settings = {"threshold": 0.2} | ({"call": f"omnireuse.enable(pipeline, {name!r})"} if role == "cache" else {})
    return Variant(name=name, role=role, settings=settings, samples=samples, **more)  # type: ignore[arg-type]


def comparison() -> Comparison:
    every = set(range(STEPS))
    return Comparison(
        title="python -m reference demo",
        model="shapes-flux",
        steps=STEPS,
        guidance=5.0,
        created="2026-01-02T03:04:05+00:00",
        environment={"torch": "2.13.0", "processor": "2 cores"},
        complete=True,
        highlight="omnireuse",
        variants=(
            _variant(0, "full", "reference", every, math.inf),
            _variant(1, "TeaCache 0.2", "cache", set(range(0, 28, 2)) | {27}, 36.0),
            _variant(2, "omnireuse", "cache", set(range(0, 28, 3)) | {1, 2, 27}, 44.0),
            _variant(3, "fewer steps (15)", "floor", set(range(15)), 37.4, floor_of="TeaCache 0.2"),
            _variant(4, "fewer steps (12)", "floor", set(range(12)), 34.0, floor_of="omnireuse"),
        ),
    )


def save_images(made: Comparison, folder: Path) -> None:
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number in range(len(made.prompts)):
        base = rng.integers(60, 200, 3)
        for variant in made.variants:
            pixels = np.broadcast_to(base, (64, 64, 3)).astype(np.float64) + rng.normal(0, 6, (64, 64, 3))
            pixels[16 + 4 * number : 40, 20:48] = 255 - base
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / variant.samples[number].image)


def save_clips(made: Comparison, folder: Path, *, frames: int = 4) -> None:
    """Clips whose frames differ in brightness, so that a screenshot tells which one is shown."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    clip = np.stack([np.full((16, 16, 3), (number + 1) / (frames + 1)) for number in range(frames)])
    for variant in made.variants:
        for sample in variant.samples:
            save_clip(clip, folder / sample.image)


def point(method: str, family: str, steps: float, psnr: float, **more: object) -> Point:
    return Point(
        method=method,
        family=family,
        settings={"computed_steps": steps},
        computed_steps=steps,
        psnr=Mean(mean=psnr, low=psnr - 2, high=psnr + 2),
        each=(psnr - 1, psnr + 1),
        ssim=Mean(mean=0.98, low=0.97, high=0.99),
        attributes=Mean(mean=0.9, low=0.8, high=1.0),
        speedup=Spread(median=1.5, low=1.4, high=1.7),
        loop_speedup=Spread(median=1.6, low=1.5, high=1.7),
        retained_bytes=3 * 2**20,
        call=f"{method.split()[0]}.enable(pipe, computed_steps={steps:g})",
        **more,  # type: ignore[arg-type]
    )


def pareto() -> Pareto:
    points = (
        point("fewer steps", "floor", 7, 27.0),
        point("fewer steps", "floor", 14, 37.0),
        point("omnireuse default", "ours", 7, 29.0),
        point("omnireuse default", "ours", 14, 51.0),
        point("peer <one>", "peer", 10, 36.0),
        point("other peer", "peer", 14, 44.0),
        Point(method="third peer", family="peer", settings={}, call="third(pipe)", error="no such block"),
    )
    case = Case(
        pipeline="shapes-flux",
        steps=28,
        guidance=6.0,
        prompts=("one", "two"),
        full=Full(seconds=Spread(median=0.95, low=0.9, high=1.0), attributes=0.99),
        points=points,
        targets={"steps for 40 dB": 10.5, "steps for 60 dB": None},
    )
    return Pareto(
        command="omnireuse compare",
        created="2026-01-02T03:04:05+00:00",
        environment={"torch": "2.13.0"},
        complete=True,
        cases=(case,),
    )
