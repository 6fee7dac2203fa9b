"""What learning from traffic gains: the default's schedule, and the one that is learnt from runs of other captions.

    python -m bench learn [--case image video] [--guidance guided unguided] [--shift 1 3] [--speedup 2 3]
                          [--runs 8 32] [--prompts 8] [--out out/bench]

PSNR in dB to the full run of 28 steps, mean over held-out captions, after so many runs of `enable(learn=True)`, one
caption each. What a calibrated profile gives on such runs is in `python -m bench travel`.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console

import omnireuse
from bench._common import new_table, no_warnings, write_record
from omnireuse import Blend, FixedSchedule
from omnireuse.evaluation.metrics import psnr
from omnireuse.evaluation.record import environment
from reference.case import CLIPS, IMAGES
from reference.drawing import Array

CASES = {"image": IMAGES, "video": CLIPS}
STEPS, SEED = 28, 4200

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``learn.json``, and show a table."""
    parser = argparse.ArgumentParser(prog="python -m bench learn", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--guidance", nargs="+", choices=("guided", "unguided"), default=["guided", "unguided"])
    parser.add_argument("--shift", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--speedup", nargs="+", type=float, default=[2.0, 3.0])
    parser.add_argument("--runs", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--prompts", type=int, default=8, help="captions that are judged")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    with no_warnings():
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """All parts that are missing."""
    kept = options.out / "learn.json"
    record: Row = json.loads(kept.read_text()) if kept.is_file() else {"rows": []}
    record |= {"command": "python -m bench learn", "environment": environment(), "prompts": options.prompts}
    players: dict[str, Player] = {}
    for case, guidance, shift in itertools.product(options.case, options.guidance, options.shift):
        keys = [
            {"case": case, "guided": guidance == "guided", "shift": shift, "speedup": speedup}
            for speedup in options.speedup
        ]
        missing = [key for key in keys if not any(row.items() >= key.items() for row in record["rows"])]
        if not missing:
            continue
        player = players.setdefault(case, Player(case, options.prompts, max(options.runs)))
        player.begin(shift, guided=guidance == "guided")
        for key in missing:
            record["rows"].append(key | player.measure(key["speedup"], sorted(options.runs)))
            write_record(record, options.out, "learn", quiet=True)
    show(record, Console())


class Player:
    """One pipeline, the captions that are judged, and those that are learnt from."""

    def __init__(self, case: str, prompts: int, runs: int) -> None:
        self._case = CASES[case]
        self.pipeline: Any = self._case.load()
        self.pipeline.set_progress_bar_config(disable=True)
        # One permutation, so that those to learn from are others.
        captions = [self._case.caption(scene) for scene in self._case.held_out(prompts + runs, seed=SEED)]
        self._judged, self._traffic = captions[:prompts], captions[prompts:]

    def begin(self, shift: float, *, guided: bool) -> None:
        """Runs from here on have this shift and guidance."""
        from diffusers import FlowMatchEulerDiscreteScheduler

        config = self.pipeline.scheduler.config
        self.pipeline.scheduler = FlowMatchEulerDiscreteScheduler.from_config(config, shift=shift)
        self._guidance = {} if guided else {self._case.guidance: 1.0}
        self._full = self._make(self._judged, SEED)

    def _make(self, captions: list[str], seed: int) -> Array:
        seeds = range(seed, seed + len(captions))
        return self._case.generate(self.pipeline, captions, seeds, num_inference_steps=STEPS, **self._guidance)

    def _judge(self, **options: Any) -> tuple[list[float], list[int]]:
        with omnireuse.enable(self.pipeline, **options) as handle:
            made = self._make(self._judged, SEED)
            computed = sorted({event.step for event in handle.events if not event.reused})
        return [min(psnr(a, b), 100.0) for a, b in zip(made, self._full, strict=True)], computed

    def measure(self, speedup: float, runs: list[int]) -> Row:
        """PSNR of each caption with the default, and after each number of runs."""
        default, computed = self._judge(speedup=speedup)
        row: Row = {"default": default, "computed": computed, "learned": []}
        schedules = []
        with omnireuse.enable(self.pipeline, speedup=speedup, learn=True) as handle:
            for number, caption in enumerate(self._traffic, 1):
                self._make([caption], SEED + len(self._judged) + number)
                if number in runs:
                    schedules.append(handle.summary().learned)
        for learned in schedules:
            assert learned is not None, "runs were complete"
            policy = FixedSchedule(steps=learned.schedule, compute_last=False)
            made, _ = self._judge(policy=policy, forecaster=Blend())
            row["learned"].append(
                {
                    "runs": learned.runs,
                    "changes": learned.changes,
                    "expected": learned.gain,
                    "computed": learned.schedule,
                    "psnr": made,
                }
            )
        return row


def show(record: Row, console: Console) -> None:
    """One line a case, with the standard error of each gain over the default."""
    counts = sorted({each["runs"] for row in record["rows"] for each in row["learned"]})
    headings = [f"{count} runs" for count in counts]
    table = new_table("PSNR, dB: learning from traffic", "case", "shift", "computed", "default", *headings)
    for row in record["rows"]:
        found = {each["runs"]: each["psnr"] for each in row["learned"]}
        table.add_row(
            f"{row['case']}, {'guided' if row['guided'] else 'no guidance'}",
            f"{row['shift']:g}",
            str(len(row["computed"])),
            f"{statistics.fmean(row['default']):.1f}",
            *(_gain(found[count], row["default"]) if count in found else "" for count in counts),
        )
    console.print(table)


def _gain(found: list[float], default: list[float]) -> str:
    gains = [a - b for a, b in zip(found, default, strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return f"{statistics.fmean(found):.1f} ({statistics.fmean(gains):+.1f} ± {error:.1f})"


if __name__ == "__main__":
    main()
