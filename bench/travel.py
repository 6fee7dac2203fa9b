"""What is left of a profile's gain where runs are not those that it was searched at.

    python -m bench travel [--case image video] [--guidance guided unguided] [--only steps shift guidance …]
                           [--prompts 8] [--out out/bench]

For the committed profiles of 28 steps at 2x and 3x: PSNR in dB to the full run of the same conditions, mean over
held-out captions, of the profile and of the default with as many computed steps. The gain is the difference, and its
share is that of the gain at the profile's own conditions: 28 steps, shift 1, guidance 6 or none, all captions in one
call, float32.

"lora" adds to each weight matrix of the attention a product of rank 4 with random entries, 5 % of the matrix by its
norm, as a LoRA that is merged. Every row is written as soon as it is known, and a run that was stopped goes on where it
was: delete the file to begin anew.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from typing import Any

import torch
from rich.console import Console

import omnireuse
from bench._common import new_table
from bench._resumable import Row, Rows, parser_of, record_of
from omnireuse import Profile
from omnireuse.pipelines.closeness import psnr
from reference.case import CLIPS, IMAGES
from reference.drawing import Array

CASES = {"image": IMAGES, "video": CLIPS}
HOME: dict[str, Any] = {"steps": 28, "shift": 1.0, "guidance": 6.0, "batch": None, "lora": False, "dtype": "float32"}
CHANGES: dict[str, tuple[Any, ...]] = {
    "steps": (20, 30, 50),
    "shift": (1.2, 2.0, 3.0, 6.0),
    "guidance": (2.0, 4.0, 8.0, 12.0),
    "batch": (1,),
    "lora": (True,),
    "dtype": ("bfloat16",),
}
BUDGETS = {"2x": 14, "3x": 9}
SEED = 5500
LORA_RANK, LORA_SIZE = 4, 0.05


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``travel.json``, and show a table."""
    parser = parser_of("travel", __doc__, CASES, prompts=8)
    parser.add_argument("--only", nargs="+", choices=CHANGES, default=list(CHANGES))
    options = parser.parse_args(arguments)
    show(record_of("travel", options, measure, prompts=options.prompts), Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """All parts that are missing."""
    for case, guidance in itertools.product(options.case, options.guidance):
        home = HOME | ({} if guidance == "guided" else {"guidance": 1.0})
        runs = [("home", home)]
        runs += [(name, home | {name: value}) for name in options.only for value in CHANGES[name]]
        for name, run in runs:
            key = {"case": case, "guided": guidance == "guided", "change": name, **run}
            if (name, guidance) != ("guidance", "unguided") and not rows.like(key):
                rows.add(key | Player(case, options.prompts, run, guided=key["guided"]).measure())


class Player:
    """One pipeline and its captions under some conditions."""

    def __init__(self, case: str, prompts: int, run: Row, *, guided: bool) -> None:
        from diffusers import FlowMatchEulerDiscreteScheduler

        self._case, self._run = CASES[case], run
        self.pipeline: Any = self._case.load()
        self.pipeline.set_progress_bar_config(disable=True)
        name = f"{self._case.name}-28-{'guided' if guided else 'unguided'}.json"
        self._profile = Profile.load(self._case.find(None) / "profiles" / name)
        config = self.pipeline.scheduler.config
        self.pipeline.scheduler = FlowMatchEulerDiscreteScheduler.from_config(config, shift=run["shift"])
        if run["lora"]:
            add_lora(self.pipeline.transformer)
        if run["dtype"] != "float32":
            self.pipeline.to(getattr(torch, run["dtype"]))
        self._prompts = [self._case.caption(scene) for scene in self._case.held_out(prompts, seed=SEED)]
        self._full = self.make()

    def make(self) -> Array:
        """What the pipeline makes now of all captions."""
        import numpy as np

        size, run = self._run["batch"] or len(self._prompts), self._run
        return np.concatenate(
            [
                self._case.generate(
                    self.pipeline,
                    self._prompts[start : start + size],
                    range(SEED + start, SEED + min(start + size, len(self._prompts))),
                    num_inference_steps=run["steps"],
                    **{self._case.guidance: run["guidance"]},
                )
                for start in range(0, len(self._prompts), size)
            ]
        )

    def measure(self) -> Row:
        """For each budget: computed steps, and PSNR of profile and default with as many, for each caption."""
        found: Row = {}
        for budget, computed in BUDGETS.items():
            # As large a share of runs of another length.
            by_profile, count = self._judged(profile=self._profile, speedup=HOME["steps"] / computed)
            by_default, _ = self._judged(computed_steps=count)
            found[budget] = {"computed": count, "profile": by_profile, "default": by_default}
        return found

    def _judged(self, **options: Any) -> tuple[list[float], int]:
        with omnireuse.enable(self.pipeline, **options) as handle:
            made = self.make()
            computed = len({event.step for event in handle.events if not event.reused})
        return [min(psnr(a, b), 100.0) for a, b in zip(made, self._full, strict=True)], computed


def add_lora(transformer: Any) -> None:
    """Change each attention matrix by one of low rank."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, weight in transformer.named_parameters():
            if weight.ndim == 2 and ".to_" in name:
                down = torch.randn(LORA_RANK, weight.shape[1], generator=generator)
                up = torch.randn(weight.shape[0], LORA_RANK, generator=generator)
                change = up @ down
                weight += change * (LORA_SIZE * weight.norm() / change.norm())


def shares(record: Row) -> list[Row]:
    """For each row and budget: mean PSNR, the gain with its standard error, and its share of the gain at home."""
    found = []
    for row in record["rows"]:
        home = next(
            each
            for each in record["rows"]
            if each["change"] == "home" and (each["case"], each["guided"]) == (row["case"], row["guided"])
        )
        for budget in BUDGETS:
            gains = [a - b for a, b in zip(row[budget]["profile"], row[budget]["default"], strict=True)]
            at_home = [a - b for a, b in zip(home[budget]["profile"], home[budget]["default"], strict=True)]
            found.append(
                {
                    **{part: row[part] for part in ("case", "guided", "change")},
                    "to": row.get(row["change"], ""),
                    "budget": budget,
                    "computed": f"{row[budget]['computed']} of {row['steps']}",
                    "default": statistics.fmean(row[budget]["default"]),
                    "profile": statistics.fmean(row[budget]["profile"]),
                    "gain": statistics.fmean(gains),
                    "error": statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0,
                    "share": statistics.fmean(gains) / statistics.fmean(at_home),
                }
            )
    return found


def show(record: Row, console: Console) -> None:
    """One line a case and budget, then the mean share of each change."""
    rows = shares(record)
    table = new_table(
        "What is left of the gain over the default", "case", "change", "computed", "default", "profile", "gain", "share"
    )
    for row in rows:
        table.add_row(
            f"{row['case']}, {'guided' if row['guided'] else 'no guidance'}, {row['budget']}",
            f"{row['change']} {row['to']}",
            row["computed"],
            f"{row['default']:.1f}",
            f"{row['profile']:.1f}",
            f"{row['gain']:+.1f} ± {row['error']:.1f}",
            f"{row['share']:.0%}",
        )
    console.print(table)
    for change in CHANGES:
        known = [row["share"] for row in rows if row["change"] == change]
        if known:
            console.print(
                f"{change}: {statistics.fmean(known):.0%} of the gain stays (mean of {len(known)}), "
                f"{min(known):.0%} at worst; {sum(share >= 0.7 for share in known)} of {len(known)} at least 70 %"
            )


if __name__ == "__main__":
    main()
