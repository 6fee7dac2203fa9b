"""What planning waves costs in quality: the default, and the default with its steps moved towards other requests.

    python -m bench wave_quality [--placements 4] [--images 6] [--out out/bench]

PSNR in dB to the full run at 28 steps, mean over held-out captions. Each placement moves the computed steps of one
request as `WavePlanner` does beside a few others that started at random waves.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

import omnireuse
from bench._common import new_table, write_record
from omnireuse import FixedSchedule, noise_levels
from omnireuse.diffusion.pipelines import DEFAULT
from omnireuse.evaluation.metrics import psnr
from omnireuse.evaluation.record import environment
from omnireuse.integrations.phases import WavePlanner, linear_cost
from reference.case import IMAGES
from reference.drawing import Array

STEPS, SEED, BESIDE = 28, 1000, 3


def placed(own: frozenset[int], seed: int) -> tuple[int, ...]:
    """The steps of a request beside others that started at random waves."""
    rng, planner = random.Random(seed), WavePlanner(linear_cost(per_wave=4.0))
    for _ in range(BESIDE):
        planner.place(own, STEPS, wave=rng.randrange(STEPS))
    return tuple(sorted(planner.place(own, STEPS, wave=STEPS)))


def main(arguments: list[str] | None = None) -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(prog="python -m bench wave_quality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--placements", type=int, default=4)
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    pipe: Any = IMAGES.load()
    pipe.set_progress_bar_config(disable=True)
    prompts = [IMAGES.caption(scene) for scene in IMAGES.held_out(options.images, seed=SEED)]
    seeds = range(SEED, SEED + len(prompts))
    table = new_table("planned waves", "guidance", "as alone", "planned, mean", "planned, least", "steps moved")
    rows: list[dict[str, Any]] = []
    for guided in (True, False):
        guidance = {} if guided else {IMAGES.guidance: 1.0}

        def run(guidance: Any = guidance) -> Array:
            return IMAGES.generate(pipe, prompts, seeds, num_inference_steps=STEPS, **guidance)

        full = run()

        def judge(policy: FixedSchedule, full: Array = full, run: Any = run) -> float:
            with omnireuse.enable(pipe, policy=policy, forecaster=DEFAULT.forecaster):
                return statistics.fmean(psnr(a, b) for a, b in zip(run(), full, strict=True))

        own = DEFAULT.start(noise_levels(pipe.scheduler)).schedule
        assert own is not None
        placements = [placed(own, seed) for seed in range(options.placements)]
        alone = judge(FixedSchedule(steps=tuple(sorted(own))))
        planned = [judge(FixedSchedule(steps=steps)) for steps in placements]
        moved = statistics.fmean(len(own - set(steps)) for steps in placements)
        rows.append({"guided": guided, "alone": alone, "planned": planned, "steps_moved": moved})
        name = "guided" if guided else "none"
        figures = (alone, statistics.fmean(planned), min(planned), moved)
        table.add_row(name, *(f"{figure:.1f}" for figure in figures))
    Console().print(table)
    record = {"command": "python -m bench wave_quality", "environment": environment(), "steps": STEPS, "rows": rows}
    write_record(record, options.out, "wave_quality")
