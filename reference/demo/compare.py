"""Run several variants of one pipeline on the same prompts and noise, and record what came of it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import omnireuse
from omnireuse.errors import StateError
from omnireuse.evaluation.metrics import psnr, ssim
from omnireuse.evaluation.report.results import Comparison, Mark, Sample, Variant

__all__ = ["Cache", "Task", "compare", "generations", "named"]

Image = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to generate.

    Attributes:
        prompt, seed: the seed decides the noise.
        check: tells which of the prompt's attributes an image or a clip in 0..1 shows; None where nothing can.
    """

    prompt: str
    seed: int
    check: Callable[[Image], dict[str, bool]] | None = None


@dataclass(frozen=True, kw_only=True)
class Cache:
    """One way of calling `omnireuse.enable`.

    Attributes:
        name: what the report calls it.
        backend, options: what `enable` is given besides the pipeline.
    """

    name: str
    backend: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The call as a person would write it."""
        backend = [] if self.backend is None else [repr(self.backend)]
        arguments = ["pipeline", *backend, *(f"{name}={value!r}" for name, value in self.options.items())]
        return f"omnireuse.enable({', '.join(arguments)})"


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One timed generation."""

    image: Image
    seconds: float
    computed_steps: float
    marks: tuple[Mark, ...] = ()
    retained_bytes: int | None = None


def generations(num_tasks: int, num_caches: int) -> int:
    """How many images `compare` generates, warm-up included: for a progress bar."""
    return 1 + num_caches + num_tasks * (1 + 2 * num_caches)


def compare(
    pipeline: Any,
    tasks: Sequence[Task],
    caches: Sequence[Cache],
    *,
    generate: Callable[[str, int, int], Image],
    num_inference_steps: int,
    guidance: float,
    model: str,
    folder: Path,
    advance: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Generate every task in full, with each cache, and for each cache with as few steps as it computed.

    Caches that computed the same number of steps share one run of fewer steps; its name tells the number.
    All variants are warmed up and then take turns on each task, so that a slow moment of the machine meets all of them.
    An interrupt (Ctrl-C) ends the comparison after the last task that every variant has finished.

    Args:
        pipeline: what `omnireuse.enable` takes.
        generate: (prompt, number of steps, seed) -> what `pipeline` makes: an image (height, width, 3) or a clip
            (frames, height, width, 3), floats in 0..1.
        num_inference_steps: of the full run.
        guidance, model: for the record.
        folder: images are written to ``folder/images``.
        advance: told the name of each variant when it has made an image.
        caches: the first is the one that the report is about.

    Raises:
        KeyboardInterrupt: interrupted before the first task was finished.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)

    def plain(task: Task, steps: int) -> _Run:
        start = time.perf_counter()
        image = generate(task.prompt, steps, task.seed)
        return _Run(image=image, seconds=time.perf_counter() - start, computed_steps=steps)

    def cached(task: Task, cache: Cache) -> _Run:
        backend: Any = cache.backend  # a name that is known when the demo runs, not to a type checker
        with omnireuse.enable(pipeline, backend, **cache.options) as handle:
            run = plain(task, num_inference_steps)
            summary, events = handle.summary(), handle.events
        if not events:
            raise StateError(
                f"{cache}: no step was decided, so there is nothing to compare; is the pipeline supported?"
            )
        marks = tuple(
            Mark(branch=e.branch, step=e.step, reused=e.reused, reason=e.reason, drift=e.drift, error=e.error)
            for e in events
        )
        return replace(run, computed_steps=summary.computed_steps, marks=marks, retained_bytes=summary.kept_bytes)

    variants = [_variant("full", "reference", {"num_inference_steps": num_inference_steps})]
    for cache in caches:
        variants.append(_variant(cache.name, "cache", {"call": str(cache)}))
        variants.append(_variant(f"fewer steps ({cache.name})", "floor", {}, floor_of=cache.name))

    samples: list[list[Sample]] = []
    interrupted = False
    try:
        plain(tasks[0], num_inference_steps)
        advance("warm-up: full")
        for cache in caches:
            cached(tasks[0], cache)
            advance(f"warm-up: {cache.name}")
        for number, task in enumerate(tasks):
            full = plain(task, num_inference_steps)
            row = [_sample(task, full, full.image, folder, f"images/{number:02d}-0.png")]
            advance("full")
            fewer: dict[int, Sample] = {}
            for cache in caches:
                run = cached(task, cache)
                row.append(_sample(task, run, full.image, folder, f"images/{number:02d}-{len(row)}.png"))
                advance(cache.name)
                steps = row[-1].whole_steps
                if steps not in fewer:
                    run = plain(task, steps)
                    fewer[steps] = _sample(task, run, full.image, folder, f"images/{number:02d}-{len(row)}.png")
                row.append(fewer[steps])
                advance(f"fewer steps ({cache.name})")
            samples.append(row)
    except KeyboardInterrupt:
        if not samples:
            raise
        interrupted = True
    return Comparison(
        title="python -m reference demo",
        model=model,
        steps=num_inference_steps,
        guidance=guidance,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=_environment(),
        complete=not interrupted,
        highlight=caches[0].name,
        variants=named(
            Variant(**variant, samples=tuple(row[index] for row in samples)) for index, variant in enumerate(variants)
        ),
    )


def named(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Runs of fewer steps named by their number; of those that take the same for every prompt the first alone."""
    kept: list[Variant] = []
    for variant in variants:
        if variant.role != "floor":
            kept.append(variant)
            continue
        steps = [sample.whole_steps for sample in variant.samples]
        if any(other.role == "floor" and [s.whole_steps for s in other.samples] == steps for other in kept):
            continue
        few, many = min(steps), max(steps)
        count, number = (f"{few}", f"{few}") if few == many else (f"{few}–{many}", "n")
        settings: dict[str, Any] = {"call": f"pipeline(prompt, num_inference_steps={number})"}
        if few < many:
            settings["n"] = f"{count}, as many as {variant.floor_of} computed for the prompt, rounded up"
        taken = {other.name for other in kept}
        name = f"fewer steps ({count})"
        name = f"fewer steps ({count}, as {variant.floor_of})" if name in taken else name
        kept.append(replace(variant, name=name, settings=settings))
    return tuple(kept)


def _variant(name: str, role: str, settings: dict[str, Any], *, floor_of: str | None = None) -> dict[str, Any]:
    return {"name": name, "role": role, "settings": settings, "floor_of": floor_of}


def _sample(task: Task, run: _Run, reference: Image, folder: Path, name: str) -> Sample:
    from omnireuse.evaluation.report.clips import save_clip

    save_clip(run.image, folder / name)
    return Sample(
        prompt=task.prompt,
        seed=task.seed,
        image=name,
        seconds=(run.seconds,),
        computed_steps=float(run.computed_steps),
        psnr=psnr(run.image, reference),
        ssim=ssim(run.image, reference),
        attributes={name: bool(held) for name, held in task.check(run.image).items()} if task.check else None,
        marks=run.marks,
        retained_bytes=run.retained_bytes,
    )


def _environment() -> dict[str, str]:
    import torch

    return {
        "omnireuse": omnireuse.__version__,
        "torch": torch.__version__,
        "diffusers": version("diffusers"),
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
    }
