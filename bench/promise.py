"""How often a promise of quality holds, and how much it leaves on the table.

    python -m bench promise [--case shapes-flux …] [--prompts 200] [--draws 1000] [--out out/bench]

PSNR in dB to the full run of 28 steps for many held-out captions each: the plans of the committed profiles, and the
default at 14, 9 and 7 steps on the pipelines that have none. Then, many times over, some of these figures are drawn as
a calibration would hold them out, a bound is computed from them, and the figures that were not drawn say whether nine
of ten reach it. Beside the bound that plans promise stand the other ways to compute one.

At the end it says what a look at the conditions of a pipeline costs.

Samples are written as soon as they are known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.stats import nct

import omnireuse
from bench._common import new_table, no_warnings, write_record
from omnireuse import Profile
from omnireuse.pipelines.pictures import psnr
from omnireuse.profiles.conditions import Watch
from omnireuse.profiles.coverage import COVERAGE, FEWEST, lower_bound
from omnireuse_lab.record import environment
from reference.case import CASES, CLIPS, FACES, Case

SEED = 9100
STEPS = 28
BUDGETS = (14, 9, 7)
SIZES = (3, 5, 8, 12, 16, 24, 32, 48)
"""Numbers of held-out captions."""

Row = dict[str, Any]
Way = Callable[[Sequence[float]], float]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``promise.json`` and show tables."""
    parser = argparse.ArgumentParser(prog="python -m bench promise", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=[name for name in CASES if name != FACES.name])
    parser.add_argument("--prompts", type=int, default=200, help="captions; at most 120 of clips")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    kept = options.out / "promise.json"
    record: Row = json.loads(kept.read_text()) if kept.is_file() else {"samples": []}
    record |= {"command": "python -m bench promise", "environment": environment(), "draws": options.draws}
    with no_warnings():
        for case in options.case:
            for guided in (True, False):
                if any((row["case"], row["guided"]) == (case, guided) for row in record["samples"]):
                    continue
                record["samples"] += sampled(CASES[case], options.prompts, guided=guided)
                write_record(record, options.out, "promise", quiet=True)
    record["bounds"] = resampled(record["samples"], options.draws)
    record["asked"] = asked(record["samples"], options.draws)
    record["look_ms"] = cost_of_a_look()
    write_record(record, options.out, "promise")
    show(record, Console())


def sampled(case: Case, prompts: int, *, guided: bool) -> list[Row]:
    """The PSNR of each caption, for each plan of the committed profile, or for the default."""
    pipeline = case.load()
    pipeline.set_progress_bar_config(disable=True)
    folder = case.find(None) / "profiles"
    seen = set((folder / "prompts.txt").read_text(encoding="utf-8").splitlines()) if folder.is_dir() else set()
    count = min(prompts, 120) if case is CLIPS else prompts
    captions = [
        case.caption(scene) for scene in case.held_out(132 if case is CLIPS else count + 2 * len(seen), seed=SEED)
    ]
    captions = [caption for caption in captions if caption not in seen][:count]
    call: Row = {"num_inference_steps": STEPS} | ({} if guided else {case.guidance: 1.0})

    def make() -> Any:
        return case.generate(pipeline, captions, range(SEED, SEED + len(captions)), **call)

    name = f"{case.name}-{STEPS}-{'guided' if guided else 'unguided'}.json"
    profile = Profile.load(folder / name) if folder.is_dir() else None
    counts = sorted(profile.plans, reverse=True) if profile is not None else BUDGETS
    full, rows = make(), []
    for computed in counts:
        with omnireuse.enable(pipeline, computed_steps=computed, profile=profile):
            made = make()
        found = [round(min(psnr(one, other), 100.0), 2) for one, other in zip(made, full, strict=True)]
        rows.append({"case": case.name, "guided": guided, "computed": computed, "psnr": found})
    return rows


def _by_mean(values: Sequence[float]) -> float:
    """The lower bound of the mean by Student's t, one-sided at 95 %, which plans promised until version 0.2.

    Source of the quantile: Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    freedom, z = len(values) - 1, statistics.NormalDist().inv_cdf(0.95)
    quantile = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return statistics.fmean(values) - quantile * statistics.stdev(values) / math.sqrt(len(values))


def _by_normal(confidence: float) -> Way:
    def bound(values: Sequence[float]) -> float:
        root, below = math.sqrt(len(values)), statistics.NormalDist().inv_cdf(COVERAGE)
        factor = nct.ppf(confidence, len(values) - 1, below * root) / root
        return statistics.fmean(values) - float(factor) * statistics.stdev(values)

    return bound


WAYS: dict[str, Way] = {
    "promised": lower_bound,
    "normal, 95 %": _by_normal(0.95),
    "normal, 90 %": _by_normal(0.9),
    "smallest": min,
    "mean, 95 %": _by_mean,
}


def _ways(size: int) -> dict[str, Way]:
    return {way: bound for way, bound in WAYS.items() if bound is not lower_bound or size >= FEWEST}


def resampled(samples: Sequence[Row], draws: int) -> list[Row]:
    """For each number of held-out captions and each way: how often nine of ten of the others reach the bound, on
    average over all samples and for the worst of them, and how far it is below the tenth that they do reach, in dB."""
    generator, rows = np.random.default_rng(SEED), []
    for size in SIZES:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for sample in samples:
            values = np.array(sample["psnr"])
            parts = [np.split(values[generator.permutation(len(values))], [size]) for _ in range(draws)]
            for way, bound in _ways(size).items():
                bounds = [bound(drawn.tolist()) for drawn, _ in parts]
                held = [(rest >= each).mean() >= 0.9 for each, (_, rest) in zip(bounds, parts, strict=True)]
                below = [tenth_of(rest) - each for each, (_, rest) in zip(bounds, parts, strict=True)]
                found[way].append((float(np.mean(held)), float(np.mean(below))))
        for way, figures in ((way, each) for way, each in found.items() if each):
            holds, below = zip(*figures, strict=True)
            rows.append(
                {
                    "size": size,
                    "way": way,
                    "holds": round(statistics.fmean(holds), 3),
                    "worst": round(min(holds), 3),
                    "below": round(statistics.fmean(below), 2),
                }
            )
    return rows


def asked(samples: Sequence[Row], draws: int) -> list[Row]:
    """How often the plan that `quality=` takes reaches what was asked for: the cheapest whose bound is high enough, so
    that luck has a part in the choice. Targets are spread over what the plans reach."""
    generator, rows = np.random.default_rng(SEED), []
    cases = dict.fromkeys((sample["case"], sample["guided"]) for sample in samples)
    for size in (size for size in SIZES if size >= FEWEST):
        kept, lost = [], 0
        for case in cases:
            plans = np.array([each["psnr"] for each in samples if (each["case"], each["guided"]) == case])
            for _ in range(draws):
                order = generator.permutation(plans.shape[1])
                drawn, rest = plans[:, order[:size]], plans[:, order[size:]]
                target = generator.uniform(tenth_of(plans[-1]) - 5, tenth_of(plans[0]))
                # The samples are in the order of falling numbers of computed steps.
                cheapest = next(
                    (i for i in reversed(range(len(plans))) if lower_bound(drawn[i].tolist()) >= target), None
                )
                if cheapest is None:
                    lost += 1
                else:
                    kept.append(bool((rest[cheapest] >= target).mean() >= 0.9))
        holds = round(statistics.fmean(kept), 3) if kept else None
        rows.append({"size": size, "holds": holds, "refused": round(lost / draws / len(cases), 3)})
    return rows


def cost_of_a_look() -> float:
    """Milliseconds to see that nothing has changed in a denoiser of a thousand weights; the median of 200."""

    class Pipeline:
        scheduler = None
        transformer = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(500)))

    pipeline, seconds = Pipeline(), []
    watch = Watch(pipeline)
    for _ in range(201):
        started = perf_counter()
        watch.now()
        seconds.append(perf_counter() - started)
    return round(1e3 * statistics.median(seconds[1:]), 3)


def tenth_of(values: Any) -> float:
    """The largest value that nine of ten reach."""
    return float(np.sort(values)[int(0.1 * len(values))])


def show(record: Row, console: Console) -> None:
    """What the samples are like, how often each bound holds, and how often a choice by `quality=` does."""
    table = new_table("Samples, PSNR in dB", "case", "computed", "captions", "mean", "deviation", "tenth", "smallest")
    for row in record["samples"]:
        values = row["psnr"]
        table.add_row(
            f"{row['case']}, {'guided' if row['guided'] else 'no guidance'}",
            str(row["computed"]),
            str(len(values)),
            *(
                f"{each:.1f}"
                for each in (statistics.fmean(values), statistics.stdev(values), tenth_of(values), min(values))
            ),
        )
    console.print(table)
    table = new_table("Bound holds (at worst); dB below the tenth", "held out", *WAYS)
    for size in SIZES:
        own = {row["way"]: row for row in record["bounds"] if row["size"] == size}
        table.add_row(str(size), *(_cell(own.get(way)) for way in WAYS))
    console.print(table)
    sizes = [row["size"] for row in record["asked"]]
    table = new_table("Nine of ten reach what quality= asks for", "held-out captions", *map(str, sizes))
    table.add_row("holds", *("" if row["holds"] is None else f"{row['holds']:.2f}" for row in record["asked"]))
    table.add_row("refused", *(f"{row['refused']:.2f}" for row in record["asked"]))
    console.print(table)
    console.print(
        f"to see that nothing has changed in a denoiser of a thousand weights takes {record['look_ms']:.2f} ms"
    )


def _cell(row: Row | None) -> str:
    return "" if row is None else f"{row['holds']:.2f} ({row['worst']:.2f}); {row['below']:.1f}"


if __name__ == "__main__":
    main()
