"""A small made-up comparison for the tests of the report; its figures mean nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace
from PIL import Image

from omnireuse_lab.closeness import Mean, MedianRange, bootstrap, spread
from omnireuse_lab.record import Case, Comparison, Point, Reference
from omnireuse_lab.report.clips import save_clip
from reference.demo.compare import ATTRIBUTES
from reference.demo.record import Demo, Sample, StepDecision

PROMPTS = (
    "a large red circle in the centre on a plain teal background",
    "a small blue cross left of a big <b>pink</b> square on a dotted gray background",
    "a striped brown background with a little white triangle above a large green circle",
)
STEPS = 28


def decisions(computed: set[int], branches: tuple[str, ...] = ("cond", "uncond")) -> tuple[StepDecision, ...]:
    return tuple(
        StepDecision(
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


def _samples(index: int, family: str, computed: set[int], psnr: float) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            image=f"images/{index}-{number}.png",
            seconds=0.02 * len(computed) + 0.001 * number,
            computed_steps=float(len(computed)),
            psnr=min(psnr + number, 100.0),
            ssim=1.0 if psnr == 100.0 else 0.98 - 0.01 * number,
            attributes={"shape": True, "colour": family != "baseline", "place": number != 2},
            decisions=decisions(computed) if family == "ours" else (),
        )
        for number, _ in enumerate(PROMPTS)
    )


FULL = _samples(0, "full", set(range(STEPS)), 100.0)
TEACACHE = set(range(0, 28, 2)) | {27}
REUSED = set(range(0, 28, 3)) | {1, 2, 27}
RUNS = (
    ("omnireuse", "ours", _samples(1, "ours", REUSED, 44.0)),
    ("TeaCache 0.2", "ours", _samples(2, "ours", TEACACHE, 36.0)),
    ("fewer steps (15)", "baseline", _samples(3, "baseline", set(range(15)), 37.4)),
    ("fewer steps (12)", "baseline", _samples(4, "baseline", set(range(12)), 34.0)),
)


def _point(name: str, family: str, samples: tuple[Sample, ...]) -> Point:
    each = tuple(sample.psnr for sample in samples)
    ours = family == "ours"
    steps = samples[0].computed_steps
    return Point(
        method=name,
        family=family,
        settings={"threshold": 0.2} if ours else {},
        computed_steps=steps,
        psnr=bootstrap(each),
        each=each,
        ssim=bootstrap([sample.ssim for sample in samples]),
        scores={ATTRIBUTES: bootstrap([sum(sample.attributes.values()) / 3 for sample in samples])},
        speedup=spread([full.seconds / own.seconds for full, own in zip(FULL, samples, strict=True)]),
        kept_bytes=98_304 if ours else None,
        call=f"omnireuse.enable(pipeline, {name!r})" if ours else f"pipeline(prompt, num_inference_steps={steps:g})",
    )


def gallery() -> Demo:
    case = Case(
        pipeline="shapes-flux",
        steps=STEPS,
        guidance=5.0,
        prompts=PROMPTS,
        full=Reference(seconds=spread([each.seconds for each in FULL]), scores={ATTRIBUTES: 8 / 9}),
        points=tuple(_point(*run) for run in RUNS),
    )
    comparison = Comparison(
        command="python -m reference demo",
        created="2026-01-02T03:04:05+00:00",
        environment={"torch": "2.13.0", "processor": "2 cores"},
        complete=True,
        cases=(case,),
    )
    return Demo(comparison=comparison, full=FULL, samples=tuple(samples for _, _, samples in RUNS))


def changed(made: Comparison, **fields: object) -> Comparison:
    """The comparison with other fields of its only case."""
    return replace(made, cases=(replace(made.cases[0], **fields),))


def images(made: Demo) -> list[tuple[str, ...]]:
    """For each run, the full one first, the names of its pictures."""
    return [tuple(sample.image for sample in row) for row in (made.full, *made.samples)]


def save_images(made: Demo, folder: Path) -> None:
    rng = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for number, names in enumerate(zip(*images(made), strict=True)):
        base = rng.integers(60, 200, 3)
        for name in names:
            pixels = np.broadcast_to(base, (64, 64, 3)).astype(np.float64) + rng.normal(0, 6, (64, 64, 3))
            pixels[16 + 4 * number : 40, 20:48] = 255 - base
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / name)


def save_clips(made: Demo, folder: Path, *, frames: int = 4) -> None:
    """Clips whose frames differ in brightness, so that a screenshot tells which one is shown."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    clip = np.stack([np.full((16, 16, 3), (number + 1) / (frames + 1)) for number in range(frames)])
    for names in images(made):
        for name in names:
            save_clip(clip, folder / name)


def point(method: str, family: str, steps: float, psnr: float, **more: object) -> Point:
    return Point(
        method=method,
        family=family,
        settings={"computed_steps": steps},
        computed_steps=steps,
        psnr=Mean(mean=psnr, low=psnr - 2, high=psnr + 2),
        each=(psnr - 1, psnr + 1),
        ssim=Mean(mean=0.98, low=0.97, high=0.99),
        scores={"attributes right": Mean(mean=0.9, low=0.8, high=1.0)},
        speedup=MedianRange(median=1.5, low=1.4, high=1.7),
        kept_bytes=3 * 2**20,
        call=f"{method.split()[0]}.enable(pipe, computed_steps={steps:g})",
        **more,  # type: ignore[arg-type]
    )


def peers() -> Comparison:
    points = (
        point("fewer steps", "baseline", 7, 27.0),
        point("fewer steps", "baseline", 14, 37.0),
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
        full=Reference(seconds=MedianRange(median=0.95, low=0.9, high=1.0), scores={"attributes right": 0.99}),
        points=points,
    )
    return Comparison(
        command="omnireuse compare",
        created="2026-01-02T03:04:05+00:00",
        environment={"torch": "2.13.0"},
        complete=True,
        cases=(case,),
    )
