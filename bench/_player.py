"""The project's pipelines by each method: what they make of held-out captions, how close it is, and what computed."""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch

import omnireuse
from bench._common import Row
from omnireuse import Steps
from omnireuse.pipelines.pictures import psnr
from omnireuse.tuning.tuner import Tuner
from reference.case import CASES

STEPS = 28
MOST_DB = 100.0
"""What equal pictures count as."""

NewScheduler = Callable[[Any], Any]
"""From the configuration of a pipeline's scheduler to that of a run."""


def solver(name: str, **options: Any) -> NewScheduler:
    """Makes a scheduler of diffusers from a pipeline's configuration."""

    def new(config: Any) -> Any:
        import diffusers

        return getattr(diffusers, name).from_config(config, **options)

    return new


def shifted(config: Any, shift: str) -> Any:
    """Euler's method for flow matching with its noise shifted: by a constant, or "dynamic", by the size of the latents.

    Pipelines that tell no size get the shift of the reference images' 64 tokens.
    """
    from diffusers import FlowMatchEulerDiscreteScheduler

    class Shifted(FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]  # diffusers is untyped
        # Pipelines read the signature to see what the scheduler takes.
        def set_timesteps(
            self,
            num_inference_steps: int | None = None,
            device: Any = None,
            sigmas: list[float] | None = None,
            mu: float | None = None,
        ) -> None:
            own = self.config
            if own.use_dynamic_shifting and mu is None:
                share = (64 - own.base_image_seq_len) / (own.max_image_seq_len - own.base_image_seq_len)
                mu = own.base_shift + share * (own.max_shift - own.base_shift)
            super().set_timesteps(num_inference_steps, device=device, sigmas=sigmas, mu=mu)

    if shift == "dynamic":
        return Shifted.from_config(config, use_dynamic_shifting=True)
    return Shifted.from_config(config, shift=float(shift))


SHIFTS: dict[str, NewScheduler] = {
    f"shift {shift}": partial(shifted, shift=shift) for shift in ("1", "1.5", "3", "6", "dynamic")
}
SOLVERS: dict[str, NewScheduler] = {
    "DDIM": solver("DDIMScheduler"),
    "DPM++ 2M, Karras": solver("DPMSolverMultistepScheduler", use_karras_sigmas=True),
    "Euler, ancestral": solver("EulerAncestralDiscreteScheduler"),
}
"""Of shapes-sd; of the other pipelines `SHIFTS`."""

Runs = Mapping[str, Sequence[str]]
"""Case -> names in `SHIFTS` or `SOLVERS`."""


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses among the runs of a case."""
    parser.add_argument("--run", nargs="+", default=None, help="names of runs, such as 'shift 1'; all by default")


def parts_of(options: argparse.Namespace, runs: Runs) -> list[Row]:
    """Case, run and guidance of each part that was asked for."""
    return [
        {"case": case, "run": run, "guided": guidance == "guided"}
        for case in options.case
        for run, guidance in itertools.product(options.run or runs[case], options.guidance)
        if run in runs[case]
    ]


class Player:
    """One pipeline in runs of one kind. Each caption has the noise of its own seed.

    Args:
        part: its case; its run, without which the scheduler is the pipeline's own; and whether it is guided.
        captions: held-out ones, or how many of them.
        judged: how many of the captions are judged, all by default; the others are there to tune on.
        seed: of captions and noise.
        steps: of a full run.
        prepare: changes the denoiser once it is loaded.

    Attributes:
        pipelines: those that are loaded, with their own schedulers.
        scenes: what the captions describe; of given captions none.
    """

    pipelines: ClassVar[dict[str, tuple[Any, Any]]] = {}

    def __init__(
        self,
        part: Row,
        captions: int | Sequence[str],
        *,
        seed: int,
        judged: int | None = None,
        steps: int = STEPS,
        prepare: Callable[[torch.nn.Module], None] = lambda _: None,
    ) -> None:
        self.case, self.seed, self.steps = CASES[part["case"]], seed, steps
        if self.case.name not in self.pipelines:
            pipeline = self.case.load()
            pipeline.set_progress_bar_config(disable=True)
            prepare(getattr(pipeline, "transformer", None))  # type: ignore[arg-type]  # a U-Net is not prepared
            self.pipelines[self.case.name] = pipeline, pipeline.scheduler
        self.pipeline, own = self.pipelines[self.case.name]
        self.pipeline.scheduler = (SHIFTS | SOLVERS)[part["run"]](own.config) if "run" in part else own
        self.guidance = {} if part["guided"] else {self.case.guidance: 1.0}
        self.scenes = self.case.held_out(captions, seed=seed) if isinstance(captions, int) else []
        self.captions = [self.case.caption(scene) for scene in self.scenes] or list(captions)  # type: ignore[arg-type]
        self.judged = range(len(self.captions) if judged is None else judged)
        self._full: dict[int, Any] = {}

    def run(self, places: Sequence[int] | None = None, steps: int | None = None, **call: Any) -> Any:
        """What the pipeline makes now of these captions, by default all that are judged: (B, …, H, W, 3) in 0…1."""
        places = self.judged if places is None else places
        captions, seeds = [self.captions[place] for place in places], [self.seed + place for place in places]
        call = {"num_inference_steps": steps or self.steps, **self.guidance, **call}
        return self.case.generate(self.pipeline, captions, seeds, **call)

    def full(self, steps: int | None = None) -> Any:
        """What it makes of the judged captions with nothing in its way."""
        steps = steps or self.steps
        if steps not in self._full:
            self._full[steps] = self.run(steps=steps)
        return self._full[steps]

    def judge(self, made: Any, steps: int | None = None) -> list[float]:
        """PSNR of each judged caption to its full run of so many steps, in dB."""
        return [round(min(psnr(a, b), MOST_DB), 3) for a, b in zip(made, self.full(steps), strict=True)]

    @contextmanager
    def enabled(self, steps: int | None = None, **options: Any) -> Iterator[omnireuse.Handle]:
        """Within it, reuse is on by these options of `enable`. The full run of so many steps is made before."""
        self.full(steps)
        with omnireuse.enable(self.pipeline, **options) as handle:
            yield handle

    def reusing(self, steps: int | None = None, **options: Any) -> tuple[Any, list[int]]:
        """What it makes of the judged captions with these options of `enable`, and the steps that computed."""
        with self.enabled(steps, **options) as handle:
            made = self.run(steps=steps)
            return made, sorted({event.step for event in handle.events if not event.reused})

    def holding(self, computed: Sequence[int], steps: int | None = None) -> Any:
        """What it makes if the output of these steps is held over the others."""
        schedule = Steps(steps=tuple(computed), compute_last=False)
        return self.reusing(steps, policy=schedule, forecaster="hold", prediction_target="output")[0]

    @contextmanager
    def tuned(self, places: Sequence[int], **options: Any) -> Iterator[omnireuse.Handle]:
        """Within it, reuse is as tuned on these captions, one call each, by these options of `enable`. Trial runs
        take as long as they take, unless no caption is given."""
        with (
            tempfile.TemporaryDirectory() as folder,
            cache_in(folder),
            self.enabled(**options) as handle,
        ):
            tuner = handle.extension(Tuner)
            if places and tuner is not None:
                tuner.measure_all()
            for place in places:
                self.run([place])
            yield handle

    def by(self, method: str, computed: int, places: Sequence[int] = ()) -> Row:
        """The PSNR of each judged caption with so many computed steps.

        Args:
            method: "fewer" steps of the solver; "untuned", the default; "hold", the output held over the default's
                steps; else the default tuned on `places`, with what tuning says.
        """
        if method == "fewer":
            return {"each": self.judge(self.run(steps=computed))}
        if method == "untuned":
            return {"each": self.judge(self.reusing(computed_steps=computed, tune=False)[0])}
        if method == "hold":
            with self.enabled(computed_steps=computed, tune=False) as handle:
                self.run(self.judged[:1])
                at = sorted({event.step for event in handle.events if not event.reused})
            return {"each": self.judge(self.holding(at))}
        with self.tuned(places, computed_steps=computed, tune=len(places)) as handle:
            return {"each": self.judge(self.run())} | said(handle)


def said(handle: omnireuse.Handle) -> Row:
    """What tuning came to."""
    tuning = handle.tuning
    return {"state": tuning.state, "runs": tuning.runs, "expected": tuning.expected, "text": tuning.reason}


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Tuned plans lie in this folder, and tuning is on."""
    given = {"OMNIREUSE_CACHE_DIR": folder, "OMNIREUSE_TUNE": "1"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
