"""What corrections are worth with nothing calibrated, beside methods that need no calibration either.

    python -m bench corrections [--case image video] [--shift 3 1] [--prompts 8] [--out out/bench]

PSNR in dB to the full run of 28 steps, mean over held-out captions that nothing was chosen on, at 14 and 9 computed
steps: the blend, the same with corrections, the last output held,
fewer steps of the same solver, and at one setting each TaylorSeer and FirstBlockCache of diffusers (for the batch as a
whole), with the steps' worth of the denoiser's work that they really did. Rows are written as soon as they are known; a
stopped run goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import omnireuse
from bench._common import new_table, no_warnings, write_record
from bench.few_steps import CASES, Player
from omnireuse import Blend, FixedSchedule
from omnireuse.diffusion.targets import SPREAD
from omnireuse.evaluation.compare.count import Work
from omnireuse.evaluation.record import environment

STEPS, BUDGETS, SEED = 28, (14, 9), 7300
THRESHOLD = 0.14
FORECASTERS: dict[str, Any] = {
    "blend": Blend(),
    "corrected": Blend(corrects=True),
    "hold": "hold",
}
METHODS = (
    *("blend 14", "corrected 14", "blend 9", "corrected 9"),
    *(f"{kind} {count}" for kind in ("hold", "fewer") for count in BUDGETS),
    *("taylorseer", "first block"),
)

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, write ``corrections.json``, and show it."""
    parser = argparse.ArgumentParser(prog="python -m bench corrections", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--shift", nargs="+", choices=("1", "3", "6", "dynamic"), default=["3", "1"])
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    with no_warnings():
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """All parts that are missing."""
    kept = options.out / "corrections.json"
    record: Row = json.loads(kept.read_text()) if kept.is_file() else {"rows": []}
    record |= {"command": f"python -m bench corrections --prompts {options.prompts}", "environment": environment()}
    players = {case: Player(CASES[case], options.prompts, seed=SEED) for case in options.case}
    for shift, guided, case in itertools.product(options.shift, (True, False), options.case):
        part = {"case": case, "guided": guided, "shift": shift}
        players[case].begin(shift, guided=guided)
        for name in options.method:
            if not any(row | part | {"method": name} == row for row in record["rows"]):
                record["rows"].append(part | {"method": name} | measured(players[case], name))
                write_record(record, options.out, "corrections", quiet=True)
    show(record, Console())


def measured(player: Player, name: str) -> Row:
    """PSNR of one method, and the steps that it computed."""
    kind, _, budget = name.partition(" ")
    count = int(budget) if budget.isdigit() else 0
    if kind == "fewer":
        return {"computed": count, "psnr": player.judge(player.run(count), STEPS)}
    if not count:
        return beside(player, name)
    policy = FixedSchedule(num_computed=count, **SPREAD)
    with omnireuse.enable(player.pipeline, policy=policy, forecaster=FORECASTERS[kind]):
        made = player.run(STEPS)
    return {"computed": count, "psnr": player.judge(made, STEPS)}


def beside(player: Player, name: str) -> Row:
    """A cache of diffusers, the batch decided on as a whole."""
    from diffusers.hooks import FirstBlockCacheConfig, TaylorSeerCacheConfig

    work = Work(player.pipeline)
    try:
        player.run(1)
        each = work.flops
        config: Any = FirstBlockCacheConfig(threshold=THRESHOLD)
        if name == "taylorseer":
            config = TaylorSeerCacheConfig(
                cache_interval=3,
                max_order=1,
                disable_cache_before_step=6,
                disable_cache_after_step=STEPS - 1,
                taylor_factors_dtype=torch.float32,
                use_lite_mode=True,
            )
        player.pipeline.transformer.enable_cache(config)
        try:
            work.reset()
            made = player.run(STEPS)
            computed = round(work.flops / each, 1)
        finally:
            player.pipeline.transformer.disable_cache()
    finally:
        work.close()
    return {"computed": computed, "psnr": player.judge(made, STEPS)}


def show(record: Row, console: Console) -> None:
    """One row for each case, guidance and shift."""
    methods = list(dict.fromkeys(row["method"] for row in record["rows"]))
    table = new_table("PSNR in dB to the full run of 28 steps", "run", *methods)
    for part in dict.fromkeys((row["case"], row["guided"], row["shift"]) for row in record["rows"]):
        own = {row["method"]: row for row in record["rows"] if (row["case"], row["guided"], row["shift"]) == part}
        cells = [
            "–" if m not in own else f"{own[m]['psnr']:.1f}" + ("" if m[-1].isdigit() else f" ({own[m]['computed']})")
            for m in methods
        ]
        table.add_row(f"{part[0]}, {'guided' if part[1] else 'unguided'}, shift {part[2]}", *cells)
    console.print(table)


if __name__ == "__main__":
    main()
