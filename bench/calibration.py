"""What a calibration reaches for the full runs it spends, beside the committed profiles of a long search.

    python -m bench calibration [--case shapes-flux …] [--guidance guided] [--prompts 24] [--judged 24] [--out FOLDER]

Captions to calibrate on, and captions to judge on that no search saw. Writes ``calibration.json`` and draws
``calibration.png`` from it; ``--show`` only draws.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import omnireuse
from bench._common import Row, Rows, parser_of, record_of
from bench._player import STEPS, Player
from omnireuse.profiles.profile import Profile
from omnireuse_lab.closeness import bootstrap
from reference.case import CASES
from reference.figures import MARKERS, PEERS, panels_of

BUDGETS = [7, 9, 14]
SEED, SEED_OF_JUDGED = 11_000, 12_000
"""Of captions and noise."""
FIT_PROMPTS = (5, 16)
"""The default first."""
BATCH = 5
"""Prompts in a call: the default's trials take one call."""


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and draw."""
    parser = parser_of("calibration", __doc__, ("shapes-flux", "shapes-wan"), prompts=24)
    parser.add_argument("--judged", type=int, default=24)
    options = parser.parse_args(arguments)
    draw(record_of("calibration", options, measure)["rows"], options.out / "calibration.png")


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Add the rows of the cases that are missing."""
    for name, guidance in itertools.product(options.case, options.guidance):
        part = {"case": name, "guided": guidance == "guided"}
        if not rows.like(part):
            for row in rows_of(part, options.prompts, options.judged):
                print(*row.values(), flush=True)
                rows.add(row)


def rows_of(part: Row, prompts: int, judged: int) -> list[Row]:
    """One row for each setting and budget: cost of the whole calibration, and PSNR on the judged captions beside that
    of the committed profile on the same captions."""
    case, player = CASES[part["case"]], Player(part, judged, seed=SEED_OF_JUDGED)
    call: dict[str, Any] = {
        **case.sampling,
        **({} if part["guided"] else {case.guidance: 1.0, "negative_prompt": None}),
    }
    del call["num_inference_steps"]

    def scores(profile: Profile, budget: int) -> list[float]:
        strategy = profile.plans[budget].strategy(profile.coordinates)
        return player.judge(player.reusing(backend=strategy)[0])

    kind = "guided" if part["guided"] else "unguided"
    long = Profile.load(case.find(None) / "profiles" / f"{case.name}-{STEPS}-{kind}.json")
    reached = {budget: scores(long, budget) for budget in BUDGETS}
    captions = list(map(case.caption, case.held_out(prompts, seed=SEED)))
    rows = []
    for fit_prompts in FIT_PROMPTS:
        found = omnireuse.calibrate(
            player.pipeline,
            captions,
            steps=STEPS,
            computed_steps=BUDGETS,
            fit_prompts=fit_prompts,
            batch_size=BATCH,
            seed=SEED,
            progress=False,
            **call,
        )
        for budget in BUDGETS:
            psnr = scores(found, budget)
            gain = bootstrap([new - old for new, old in zip(psnr, reached[budget], strict=True)])
            rows.append(
                part
                | {"fit_prompts": fit_prompts, "computed_steps": budget, "steps": found.plans[budget].steps}
                | {"runs": found.cost_in_runs, "psnr": statistics.fmean(psnr)}
                | {"long": statistics.fmean(reached[budget]), "long_runs": long.cost_in_runs}
                | {"gain": gain.mean, "low": gain.low, "high": gain.high}
            )
    return rows


def draw(rows: Sequence[Row], target: Path) -> None:
    """PSNR beside the long search's, against the full runs spent."""
    cases = list(dict.fromkeys((row["case"], row["guided"]) for row in rows))
    figure, axes = panels_of(len(cases), sharey=True)
    for axis, (name, guided) in zip(axes, cases, strict=True):
        own = [row for row in rows if (row["case"], row["guided"]) == (name, guided)]
        for budget, colour, marker in zip(BUDGETS, PEERS, MARKERS, strict=False):
            line = [row for row in own if row["computed_steps"] == budget]
            errors = [[row["gain"] - row["low"] for row in line], [row["high"] - row["gain"] for row in line]]
            label = f"{budget} of {STEPS} steps"
            look = {"color": colour, "marker": marker, "ms": 5, "lw": 1.4, "label": label}
            axis.errorbar([row["runs"] for row in line], [row["gain"] for row in line], errors, **look)
        axis.axhline(0, color="black", linewidth=0.8)
        title = f"{name}, {'guided' if guided else 'no guidance'}\nlong search: {own[0]['long_runs']:.0f} runs"
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("full runs spent")
    figure.supylabel("PSNR − long search's, dB", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    main()
