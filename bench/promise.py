"""How often a promise of quality holds, and how much it leaves on the table.

    python -m bench promise [--case shapes-flux …] [--prompts 200] [--draws 1000] [--out out/bench]

PSNR in dB to the full run of 28 steps for many held-out captions each: the plans of the committed profiles, and the
default at 14, 9 and 7 steps on the pipelines that have none. Then, many times over, some of these figures are drawn as
a calibration would hold them out, the bound is computed from them that plans promise, and the figures that were not
drawn say whether nine of ten reach it. At the end it says what a look at the conditions of a pipeline costs.

Samples are written as soon as they are known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.console import Console

from bench._common import Row, Rows, new_table, parser_of, record_of, write_record
from bench._player import STEPS, Player
from omnireuse import Profile
from omnireuse.profiles.conditions import ConditionsWatch
from omnireuse.profiles.coverage import FEWEST, lower_bound
from reference.case import CASES, CLIPS, FACES

SEED = 9100
BUDGETS = (14, 9, 7)
SIZES = tuple(size for size in (5, 8, 12, 16, 24, 32, 48) if size >= FEWEST)
"""Numbers of held-out captions."""
MOST_CLIPS = 120


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``promise.json`` and show tables."""
    parser = parser_of("promise", __doc__, [name for name in CASES if name != FACES.name], prompts=200)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args(arguments)
    record = record_of("promise", options, measure, draws=options.draws)
    record |= {"bounds": resampled(record["rows"], options.draws), "look_ms": cost_of_a_look()}
    write_record(record, options.out, "promise")
    show(record, Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Add the missing samples: the PSNR of each caption, for each plan of the committed profile, or for the default."""
    for case in options.case:
        for guided in (guidance == "guided" for guidance in options.guidance):
            if not rows.like(key := {"case": case, "guided": guided}):
                rows.add(*(key | sample for sample in sampled(key, options.prompts)))


def sampled(part: Row, prompts: int) -> list[Row]:
    """The samples of one case."""
    case = CASES[part["case"]]
    folder, count = case.find(None) / "profiles", min(prompts, MOST_CLIPS) if case is CLIPS else prompts
    is_calibrated = folder.is_dir()
    seen = set((folder / "prompts.txt").read_text(encoding="utf-8").splitlines()) if is_calibrated else set()
    scenes = case.held_out(MOST_CLIPS + 12 if case is CLIPS else count + 2 * len(seen), seed=SEED)
    captions = [caption for caption in map(case.caption, scenes) if caption not in seen][:count]
    player = Player(part, captions, seed=SEED)
    name = f"{case.name}-{STEPS}-{'guided' if part['guided'] else 'unguided'}.json"
    profile = Profile.load(folder / name) if is_calibrated else None
    counts = sorted(profile.plans, reverse=True) if profile is not None else BUDGETS
    return [
        {"computed": count, "psnr": player.judge(player.reusing(computed_steps=count, profile=profile)[0])}
        for count in counts
    ]


def resampled(samples: Sequence[Row], draws: int) -> list[Row]:
    """For each number of held-out captions: how often nine of ten of the others reach the bound, on average over all
    samples and for the worst of them, and how far it is below the tenth that they do reach, in dB."""
    generator, rows = np.random.default_rng(SEED), []
    for size in SIZES:
        holds, below = [], []
        for values in (np.array(sample["psnr"]) for sample in samples if len(sample["psnr"]) > size):
            parts = [np.split(values[generator.permutation(len(values))], [size]) for _ in range(draws)]
            bounds = [lower_bound(drawn.tolist()) for drawn, _ in parts]
            pairs = [(bound, rest) for bound, (_, rest) in zip(bounds, parts, strict=True)]
            holds.append(statistics.fmean(float((rest >= bound).mean() >= 0.9) for bound, rest in pairs))
            below.append(statistics.fmean(tenth_of(rest) - bound for bound, rest in pairs))
        if holds:
            found = {"holds": statistics.fmean(holds), "worst": min(holds), "below": statistics.fmean(below)}
            rows.append({"size": size, **{name: round(value, 3) for name, value in found.items()}})
    return rows


def cost_of_a_look() -> float:
    """Milliseconds to see that nothing has changed in a denoiser of a thousand weights; the median of 200."""

    class Pipeline:
        scheduler = None
        transformer = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(500)))

    pipeline, seconds = Pipeline(), []
    watch = ConditionsWatch(pipeline)
    for _ in range(201):
        started = perf_counter()
        watch.now()
        seconds.append(perf_counter() - started)
    return round(1e3 * statistics.median(seconds[1:]), 3)


def tenth_of(values: Any) -> float:
    """The largest value that nine of ten reach."""
    return float(np.sort(values)[int(0.1 * len(values))])


def show(record: Row, console: Console) -> None:
    """What the samples are like, and how often the bound holds."""
    table = new_table("Samples, PSNR in dB", "case", "computed", "captions", "mean", "deviation", "tenth", "smallest")
    for row in record["rows"]:
        values = row["psnr"]
        figures = (statistics.fmean(values), statistics.stdev(values), tenth_of(values), min(values))
        name = f"{row['case']}, {'guided' if row['guided'] else 'no guidance'}"
        table.add_row(name, str(row["computed"]), str(len(values)), *(f"{each:.1f}" for each in figures))
    console.print(table)
    table = new_table("The bound that plans promise", "held out", "holds", "at worst", "dB below the tenth")
    for row in record["bounds"]:
        table.add_row(str(row["size"]), f"{row['holds']:.2f}", f"{row['worst']:.2f}", f"{row['below']:.1f}")
    console.print(table)
    console.print(
        f"to see that nothing has changed in a denoiser of a thousand weights takes {record['look_ms']:.2f} ms"
    )


if __name__ == "__main__":
    main()
