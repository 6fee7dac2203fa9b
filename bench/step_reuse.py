"""Reuse of denoising steps on the reference pipeline: quality at equal compute beside the baselines, and wall-clock.

    python -m bench step_reuse [--prompts 24] [--steps 28] [--out out/bench]

Quality: held-out captions in batches, PSNR to the full run from the same noise. Beside every cache stand the two
baselines that it must not lose to, computed in the same run: the same solver on as many uniform steps, and the same
solver on the very timesteps that the cache computed. Wall-clock: one prompt at a time, variants taking turns, as a
ratio to the full run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import new_table, write_record
from omnireuse import Blend, Hold, Polynomial, Spread
from omnireuse.pipelines.pictures import psnr
from omnireuse_lab.record import environment
from reference.case import IMAGES
from reference.evaluate import score

DEFAULT = omnireuse.Strategy.default()
FORECASTERS = {
    "hold": Hold(),
    "polynomial": Polynomial(order=1),
    "blend": Blend(),
}
SCHEDULES = {"default": DEFAULT.policy} | {
    f"{count}, {name}": Spread(num_computed=count, power=power)
    for count in (14, 10, 7)
    for name, power in (("even", 1.0), ("power 1.7", 1.7))
}


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``step_reuse.json`` and two tables."""
    parser = argparse.ArgumentParser(prog="python -m bench step_reuse", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, default=None, help="folder of the reference pipeline")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--timed", type=int, default=8, help="prompts for the wall-clock part")
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    bench = Bench(options)
    record: dict[str, Any] = {
        "command": f"python -m bench step_reuse --prompts {options.prompts} --steps {options.steps}",
        "environment": environment(),
        "quality": {name: bench.quality(guided) for name, guided in (("guided", True), ("unguided", False))},
        "wall_clock": bench.wall_clock(),
    }
    show(record, Console())
    write_record(record, options.out, "step_reuse")


class Bench:
    """One pipeline, one set of held-out prompts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.steps, self.timed = options.steps, options.timed
        self.pipe = IMAGES.load(options.model)
        self.pipe.set_progress_bar_config(disable=True)
        self.scenes = IMAGES.held_out(options.prompts, seed=options.seed)
        self.prompts = [IMAGES.caption(scene) for scene in self.scenes]
        self.seed = options.seed

    def images(self, *, guided: bool, **overrides: Any) -> np.ndarray:
        """Every prompt once, in batches."""
        call = {"num_inference_steps": self.steps} | overrides
        if not guided:
            call |= {"negative_prompt": None, "true_cfg_scale": 1.0}
        seeds = range(self.seed, self.seed + len(self.prompts))
        return IMAGES.generate(self.pipe, self.prompts, seeds, **call)

    def subset(self, steps: list[int]) -> dict[str, Any]:
        """What makes the solver run on these steps of the full schedule alone (the scheduler shifts what it is
        given)."""
        return {
            "sigmas": [float(s) for s in np.linspace(1.0, 1 / self.steps, self.steps)[steps]],
            "num_inference_steps": None,
        }

    def quality(self, guided: bool) -> list[dict[str, Any]]:
        """Each schedule with each forecaster, and its baselines."""
        full = self.images(guided=guided)
        rows = []
        for name, policy in track(SCHEDULES.items(), f"quality, {'guided' if guided else 'unguided'}"):
            assert isinstance(policy, Spread)
            noises = tuple(float(s) for s in np.linspace(1.0, 1 / self.steps, self.steps))
            computed = sorted(policy.schedule(self.steps, noises))
            baselines = {
                "fewer uniform steps": self.images(guided=guided, num_inference_steps=len(computed)),
                "same timesteps": self.images(guided=guided, **self.subset(computed)),
            }
            row: dict[str, Any] = {"schedule": name, "computed": len(computed), "variants": {}}
            for baseline, made in baselines.items():
                row["variants"][baseline] = self.judge(made, full)
            for forecaster, choice in FORECASTERS.items():
                # Holding the output is the same solver on the computed timesteps, which is that baseline exactly.
                with omnireuse.enable(self.pipe, policy=policy, forecaster=choice) as handle:
                    made = self.images(guided=guided)
                assert handle.summary().computed_steps == len(computed)
                row["variants"][forecaster] = self.judge(made, full)
            rows.append(row)
        rows.append({"schedule": "full", "computed": self.steps, "variants": {"full": self.judge(full, full)}})
        return rows

    def judge(self, made: np.ndarray, full: np.ndarray) -> dict[str, Any]:
        """PSNR with its spread over prompts, and attributes right."""
        each = [min(psnr(a, b), 100.0) for a, b in zip(made, full, strict=True)]
        attributes, captions, _ = score(self.scenes, made, IMAGES.check)
        return {
            "psnr": statistics.fmean(each),
            "psnr_low": float(np.quantile(each, 0.1)),
            "psnr_high": float(np.quantile(each, 0.9)),
            "attributes": attributes,
            "captions": captions,
        }

    def wall_clock(self) -> list[dict[str, Any]]:
        """Seconds for one image, variants taking turns; the host's share of a reused step."""
        variants: dict[str, Callable[[], Any]] = {
            "full": lambda: None,
            "never (everything computed)": lambda: omnireuse.enable(self.pipe, policy="never"),
            "default, region step": lambda: omnireuse.enable(self.pipe),
            "default in region call": lambda: omnireuse.enable(
                self.pipe, policy=DEFAULT.policy, forecaster=DEFAULT.forecaster, region="call"
            ),
            "hold in region blocks": lambda: omnireuse.enable(self.pipe, policy=DEFAULT.policy, region="blocks"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        notes: dict[str, dict[str, Any]] = {name: {} for name in variants}
        for number in track(range(-1, self.timed), "wall-clock"):
            for name, enable in variants.items():
                handle = enable()
                generator = torch.Generator().manual_seed(self.seed + number)
                start = time.perf_counter()
                call = {**IMAGES.sampling} | {"num_inference_steps": self.steps}
                self.pipe(self.prompts[number % len(self.prompts)], generator=generator, output_type="np", **call)
                spent = time.perf_counter() - start
                if number >= 0:
                    seconds[name].append(spent)
                if handle is not None:
                    reused = [event.host_seconds for event in handle.events if event.reused]
                    notes[name] = {
                        "steps_over_computed": handle.summary().step_ratio,
                        "host_ms_a_reused_decision": statistics.median(reused) * 1e3 if reused else None,
                        "kept_bytes": handle.summary().kept_bytes,
                    }
                    handle.disable()
        rows = []
        for name, spent in seconds.items():
            ratios = [full / own for full, own in zip(seconds["full"], spent, strict=True)]
            rows.append(
                {
                    "variant": name,
                    "speedup": statistics.median(ratios),
                    "speedup_low": min(ratios),
                    "speedup_high": max(ratios),
                    **notes[name],
                }
            )
        return rows


def show(record: dict[str, Any], console: Console) -> None:
    """Both tables."""
    for name, rows in record["quality"].items():
        columns = list(rows[0]["variants"])
        table = new_table(f"PSNR to the full run in dB, {name}", "schedule", "computed", *columns)
        for row in rows[:-1]:
            cells = [f"{row['variants'][column]['psnr']:.1f}" for column in columns]
            table.add_row(row["schedule"], str(row["computed"]), *cells)
        console.print(table)
    headings = ("speed-up", "low", "high", "steps / computed", "host ms, reused", "KiB kept")
    table = new_table("wall-clock, ratio to the full run", "variant", *headings)
    for row in record["wall_clock"]:
        host = row.get("host_ms_a_reused_decision")
        table.add_row(
            row["variant"],
            *(f"{row[key]:.2f}" for key in ("speedup", "speedup_low", "speedup_high")),
            f"{row.get('steps_over_computed', 1.0):.2f}",
            "–" if host is None else f"{host:.3f}",
            f"{row.get('kept_bytes', 0) / 1024:.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
