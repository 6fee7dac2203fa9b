"""The comparison of the demo: pictures and decisions of each cache, and of as many plain steps as it computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import omnireuse
from omnireuse import Decision
from omnireuse.errors import StateError
from omnireuse.pipelines.pictures import capped_psnr
from omnireuse_lab.closeness import bootstrap, spread, ssim
from omnireuse_lab.compare.harness import Harness, MeasuredRun
from omnireuse_lab.compare.methods.base import Kept, Setting
from omnireuse_lab.compare.methods.baselines import fewer_steps
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.record import Case, Point, Reference
from omnireuse_lab.report.clips import save_clip
from reference.demo.record import Sample, StepDecision

__all__ = ["ATTRIBUTES", "Cache", "Compared", "compare_caches", "generations"]

ATTRIBUTES = "attributes right"
"""Name of the score: the share of the prompt's attributes that a checker finds in the picture."""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """One way of calling `omnireuse.enable`.

    Attributes:
        name: for people.
        backend, options: what `enable` is given beside the pipeline.
    """

    name: str
    backend: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The call as a person would write it."""
        backend = [] if self.backend is None else [repr(self.backend)]
        arguments = ["pipeline", *backend, *(f"{name}={value!r}" for name, value in self.options.items())]
        return f"omnireuse.enable({', '.join(arguments)})"

    def setting(self, decisions: list[StepDecision], decided: Callable[[Decision], None]) -> Setting:
        """The cache as a setting of the harness, which tells each decision to `decided` and leaves those of the last
        run in `decisions`."""

        @contextmanager
        def enable(pipeline: Any) -> Iterator[Kept]:
            backend: Any = self.backend  # a name that is known when the demo runs, not to a type checker
            with omnireuse.enable(pipeline, backend, **self.options) as handle:
                handle.subscribe(decided)
                yield lambda: handle.summary().kept_bytes
                names = StepDecision.__struct_fields__
                decisions[:] = [StepDecision(**{name: getattr(each, name) for name in names}) for each in handle.events]

        return Setting(settings={}, call=str(self), enable=enable)


def generations(num_prompts: int, num_caches: int) -> int:
    """How often `compare_caches` calls `advance`, for a progress bar."""
    return num_prompts + num_caches + num_prompts * (1 + 2 * num_caches)


def compare_caches(
    workload: Workload,
    checks: Sequence[Callable[[Any], Mapping[str, bool]]],
    caches: Sequence[Cache],
    *,
    folder: Path,
    advance: Callable[[str], None] = lambda _: None,
    decided: Callable[[Decision], None] = lambda _: None,
) -> tuple[Compared, bool]:
    """Generate every prompt in full, with each cache, and with as few plain steps as each cache computed.

    Caches that compute the same number of steps share one plain run. All runs take turns on each prompt, so that a slow
    moment of the machine meets all of them. An interrupt (Ctrl-C) ends the comparison after the last whole prompt.

    Args:
        checks: for each prompt a function from a picture to whether it shows each attribute.
        caches: the first is the one that the page is about.
        folder: pictures are written to ``folder/images``.
        advance: called with the name of each run when it has made a picture.
        decided: called with each decision of a cache, while its run goes on.

    Returns:
        The case with its samples, and whether it is complete.

    Raises:
        KeyboardInterrupt: before the first prompt was whole.
    """
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows: list[list[Sample]] = []
    kept = [0] * len(caches)
    decisions: list[StepDecision] = []
    complete = True
    with Harness(workload) as harness:

        def sample(number: int, run: MeasuredRun, place: int, *, steps: float) -> Sample:
            picture, full = run.picture, harness.full[number]
            name = f"images/{number:02d}-{place}.png"
            save_clip(picture, folder / name)
            return Sample(
                image=name,
                seconds=run.seconds,
                computed_steps=steps,
                psnr=capped_psnr(picture, full),
                ssim=ssim(picture, full),
                attributes={key: bool(held) for key, held in checks[number](picture).items()},
                decisions=tuple(decisions),
            )

        try:
            harness.measure_full(lambda _: advance("full, to compare with"))
            for cache in caches:
                harness.run(cache.setting(decisions, decided), 0)
                if not decisions:
                    raise StateError(
                        f"{cache}: no step was decided, so there is nothing to compare; is the pipeline supported?"
                    )
                advance(f"warm-up: {cache.name}")
            for number in range(len(workload.prompts)):
                decisions.clear()
                row = [sample(number, harness.run(None, number, timed=True), 0, steps=workload.steps)]
                advance("full")
                plain: dict[int, Sample] = {}
                for place, cache in enumerate(caches):
                    run = harness.run(cache.setting(decisions, decided), number, timed=True)
                    kept[place] = max(kept[place], run.kept_bytes)
                    row.append(sample(number, run, len(row), steps=_computed(decisions)))
                    advance(cache.name)
                    decisions.clear()
                    steps = row[-1].whole_steps
                    if steps not in plain:
                        run = harness.run(fewer_steps(steps), number, timed=True)
                        plain[steps] = sample(number, run, len(row), steps=steps)
                    row.append(plain[steps])
                    advance(f"fewer steps ({cache.name})")
                rows.append(row)
        except KeyboardInterrupt:
            if not rows:
                raise
            complete = False
    return _compared(workload, caches, rows, kept), complete


class Compared(NamedTuple):
    """A case, and the samples of its full run and of each point."""

    case: Case
    full: tuple[Sample, ...]
    samples: tuple[tuple[Sample, ...], ...]


def _compared(
    workload: Workload, caches: Sequence[Cache], rows: Sequence[Sequence[Sample]], kept: Sequence[int]
) -> Compared:
    """So many whole prompts; each row holds the full run, then each cache and its plain run."""
    full, *columns = (tuple(column) for column in zip(*rows, strict=True))
    points: list[Point] = []
    samples: list[tuple[Sample, ...]] = []
    for place, cache in enumerate(caches):
        own = _figures(columns[2 * place], full)
        points.append(
            Point(method=cache.name, family="ours", settings={}, call=str(cache), kept_bytes=kept[place], **own)
        )
        samples.append(columns[2 * place])
        baseline = columns[2 * place + 1]
        steps = [sample.whole_steps for sample in baseline]
        plain = (row for row, point in zip(samples, points, strict=True) if point.family == "baseline")
        if any([sample.whole_steps for sample in row] == steps for row in plain):
            continue
        few, many = min(steps), max(steps)
        count, argument = (f"{few}", f"{few}") if few == many else (f"{few}–{many}", "n")
        name = f"fewer steps ({count})"
        if name in {each.method for each in points}:
            name = f"fewer steps ({count}, as {cache.name})"
        settings: dict[str, Any] = (
            {} if few == many else {"n": f"{count}, as many as {cache.name} computed for the prompt, rounded up"}
        )
        points.append(
            Point(
                method=name,
                family="baseline",
                settings=settings,
                call=f"pipeline(prompt, num_inference_steps={argument})",
                **_figures(baseline, full),
            )
        )
        samples.append(baseline)
    case = Case(
        pipeline=workload.name,
        steps=workload.steps,
        guidance=workload.guidance,
        prompts=workload.prompts[: len(rows)],
        seed=workload.seed,
        full=Reference(
            seconds=spread([each.seconds for each in full]),
            scores={ATTRIBUTES: float(np.mean(_attributes(full)))},
        ),
        points=tuple(points),
    )
    return Compared(case, full, tuple(samples))


def _computed(decisions: Sequence[StepDecision]) -> float:
    """The computed steps; a step counts in part where a part of its branches computed."""
    by_step: dict[int, list[bool]] = {}
    for each in decisions:
        by_step.setdefault(each.step, []).append(not each.reused)
    return sum(float(np.mean(computed)) for computed in by_step.values())


def _figures(samples: tuple[Sample, ...], full: tuple[Sample, ...]) -> dict[str, Any]:
    each = tuple(sample.psnr for sample in samples)
    return {
        "computed_steps": float(np.mean([sample.computed_steps for sample in samples])),
        "psnr": bootstrap(each),
        "each": each,
        "ssim": bootstrap([sample.ssim for sample in samples]),
        "scores": {ATTRIBUTES: bootstrap(_attributes(samples))},
        "speedup": spread([one.seconds / own.seconds for one, own in zip(full, samples, strict=True)]),
    }


def _attributes(samples: Sequence[Sample]) -> list[float]:
    return [float(np.mean(list(sample.attributes.values()))) for sample in samples]
