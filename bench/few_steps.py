"""The default against fewer steps of the same solver, at equal computed steps, from 2 to 60 steps and at every shift.

    python -m bench few_steps [--case image video] [--shift 1 3 6 dynamic] [--guidance guided] [--out out/bench]

PSNR in dB to the full run of the same scheduler and shift, mean over held-out captions. Beside the default stand, with
as many computed steps, the same solver with so many steps of its own, the last output held over the default's own steps
and, at 28 steps, the same count spread by step number. Where the default computes more than half of the steps, half of
them are shown too (`speedup=2`).

A second part asks for 14, 9 and 7 of 28 steps, on captions of its own.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

import omnireuse
from bench._common import no_warnings, write_record
from bench._few_steps_figures import draw, show
from omnireuse import Spread, Steps
from omnireuse.pipelines.pictures import psnr
from omnireuse_lab.record import environment
from reference.case import CLIPS, IMAGES, Case
from reference.drawing import Array

DEFAULT = omnireuse.Strategy.default()
CASES = {"image": IMAGES, "video": CLIPS}
SHIFTS = ("1", "3", "6", "dynamic")
STEPS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 50, 60)
FULL_STEPS, BUDGETS = 28, (14, 9, 7)
SEED, BUDGET_SEED = 1000, 7700

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``few_steps.json`` and a picture, and show tables."""
    parser = argparse.ArgumentParser(prog="python -m bench few_steps", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--shift", nargs="+", choices=SHIFTS, default=list(SHIFTS))
    parser.add_argument("--guidance", nargs="+", choices=("guided", "unguided"), default=["guided", "unguided"])
    parser.add_argument("--steps", nargs="*", type=int, default=list(STEPS))
    parser.add_argument("--budgets", nargs="*", type=int, default=list(BUDGETS), help=f"of {FULL_STEPS} steps")
    parser.add_argument("--images", type=int, default=4, help="captions of images")
    parser.add_argument("--clips", type=int, default=3, help="captions of clips")
    parser.add_argument("--prompts", type=int, default=8, help="captions of each part of --budgets")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    with no_warnings():
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Run what is missing, and write and show the record."""
    kept = options.out / "few_steps.json"
    record: Row = json.loads(kept.read_text()) if kept.is_file() else {"lengths": [], "budgets": []}
    record |= {"command": "python -m bench few_steps", "environment": environment()}
    parts = list(itertools.product(options.guidance, options.shift, options.case))
    with Progress() as progress:
        task = progress.add_task("few steps", total=len(parts) * (len(options.steps) + len(options.budgets)))
        players: dict[tuple[str, str], Player] = {}
        for (guidance, shift, case), kind in itertools.product(parts, ("budgets", "steps")):
            asked: list[int] = getattr(options, kind)
            if not asked:
                continue
            if (case, kind) not in players:
                players[case, kind] = _player(case, kind, options)
            player, part = players[case, kind], {"case": case, "guided": guidance == "guided", "shift": shift}
            player.begin(shift, guided=part["guided"])
            rows, name = (record["budgets"], "budget") if kind == "budgets" else (record["lengths"], "steps")
            for count in asked:
                key = part | {name: count}
                if not _known(rows, key):
                    rows.append(key | (player.budget(count) if kind == "budgets" else player.length(count)))
                    write_record(record, options.out, "few_steps", quiet=True)
                progress.advance(task)
    show(record, Console())
    if record["lengths"]:
        draw(record, options.out / "few-steps.png")


def _player(case: str, kind: str, options: argparse.Namespace) -> Player:
    if kind == "budgets":
        return Player(CASES[case], options.prompts, seed=BUDGET_SEED)
    return Player(CASES[case], options.images if case == "image" else options.clips)


def _known(rows: list[Row], key: Row) -> bool:
    return any(all(row[name] == value for name, value in key.items()) for row in rows)


class Player:
    """One pipeline and its captions, in runs of one scheduler, with guidance or without."""

    def __init__(self, case: Case, prompts: int, seed: int = SEED) -> None:
        self._case = case
        self.pipeline: Any = self._case.load()
        self.pipeline.set_progress_bar_config(disable=True)
        self.config = self.pipeline.scheduler.config
        self._prompts = [self._case.caption(scene) for scene in self._case.held_out(prompts, seed=seed)]
        self._seed = seed
        self._full: dict[int, Array] = {}

    def begin(self, shift: str, *, guided: bool) -> None:
        """Runs from here on have this shift and guidance."""
        self.use(shifted(self.config, shift), guided=guided)

    def use(self, scheduler: Any, *, guided: bool) -> None:
        """Runs from here on have this scheduler and guidance."""
        self.pipeline.scheduler = scheduler
        self._guidance = {} if guided else {self._case.guidance: 1.0}
        self._full.clear()

    def length(self, steps: int) -> Row:
        """PSNR of the default, of half of the steps and of their rivals in a run of so many steps."""
        policy = DEFAULT.policy
        assert isinstance(policy, Spread)
        row: Row = {"default": self._beside_fewer(steps, policy), "half": None}
        if "fewer" in row["default"]:
            held, _ = self._reusing(steps, policy, "hold")
            row["default"]["hold"] = self.judge(held, steps)
        if steps == FULL_STEPS:
            by_number = Spread(speedup=2.0, by_noise=False)
            row["default"]["by_number"] = self.judge(self._reusing(steps, by_number, DEFAULT.forecaster)[0], steps)
        if row["default"]["computed"] > steps / 2 + 1:
            half = Spread(speedup=2.0)
            row["half"] = self._beside_fewer(steps, half)
        return row

    def budget(self, count: int) -> Row:
        """PSNR where `count` of 28 steps are asked for, beside holding over the same steps and fewer steps."""
        with omnireuse.enable(self.pipeline, computed_steps=count) as handle:
            made = self.run(FULL_STEPS)
            computed = sorted({event.step for event in handle.events if not event.reused})
        held, _ = self._reusing(FULL_STEPS, Steps(steps=tuple(computed), compute_last=False), "hold")
        found = {"psnr": made, "hold": held, "fewer": self._whole(count)}
        each = {name: self.judged(pictures, FULL_STEPS) for name, pictures in found.items()}
        return {name: statistics.fmean(values) for name, values in each.items()} | {"at": computed, "each": each}

    def _beside_fewer(self, steps: int, policy: Spread | Steps) -> Row:
        made, computed = self._reusing(steps, policy, DEFAULT.forecaster)
        row: Row = {"computed": len(computed), "psnr": self.judge(made, steps)}
        if len(computed) == steps:
            return row
        return row | {"at": computed, "fewer": self.judge(self._whole(len(computed)), steps)}

    def _reusing(self, steps: int, policy: Spread | Steps, forecaster: Any) -> tuple[Array, list[int]]:
        with omnireuse.enable(self.pipeline, policy=policy, forecaster=forecaster) as handle:
            made = self.run(steps)
            return made, sorted({event.step for event in handle.events if not event.reused})

    def _whole(self, steps: int) -> Array:
        if steps not in self._full:
            self._full[steps] = self.run(steps)
        return self._full[steps]

    def run(self, steps: int) -> Array:
        """What the pipeline makes now, in so many steps."""
        seeds = range(self._seed, self._seed + len(self._prompts))
        return self._case.generate(self.pipeline, self._prompts, seeds, num_inference_steps=steps, **self._guidance)

    def judge(self, made: Array, steps: int) -> float:
        """Mean PSNR to the full run of so many steps."""
        return statistics.fmean(self.judged(made, steps))

    def judged(self, made: Array, steps: int) -> list[float]:
        """The same for each caption."""
        return [min(psnr(a, b), 100.0) for a, b in zip(made, self._whole(steps), strict=True)]


def solver(name: str, **options: Any) -> Callable[[Any], Any]:
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


if __name__ == "__main__":
    main()
