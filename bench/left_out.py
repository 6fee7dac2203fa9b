"""The default on the reference pipelines that no constant was chosen on.

A U-Net that predicts noise, under three solvers, and a transformer with guidance distilled into it, at three shifts.

    python -m bench left_out [--case shapes-sd shapes-dev] [--guidance guided] [--budgets 14 9 7] [--out out/bench]

PSNR in dB to the full run of 28 steps of the same solver, for each held-out caption. Beside the default stand, with as
many computed steps, the last output held over the default's own steps and the solver with so many steps of its own.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import track

from bench._common import new_table
from bench._few_steps_figures import budget_cell
from bench._resumable import Row, Rows, parser_of, parts_of, record_of
from bench.few_steps import BUDGETS, Player, shifted
from reference.case import CASES

SEED = 8800


def solver(name: str, **options: Any) -> Callable[[Any], Any]:
    """Makes a scheduler of diffusers from a pipeline's configuration."""

    def new(config: Any) -> Any:
        import diffusers

        return getattr(diffusers, name).from_config(config, **options)

    return new


SOLVERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "shapes-sd": {
        "DDIM": solver("DDIMScheduler"),
        "DPM++ 2M, Karras": solver("DPMSolverMultistepScheduler", use_karras_sigmas=True),
        "Euler, ancestral": solver("EulerAncestralDiscreteScheduler"),
    },
    "shapes-dev": {f"Euler, shift {shift}": partial(shifted, shift=shift) for shift in ("1", "3", "6")},
}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``left_out.json`` and show a table."""
    parser = parser_of("left_out", __doc__, SOLVERS, prompts=8)
    parser.add_argument("--budgets", nargs="+", type=int, default=list(BUDGETS), help="of 28 steps")
    show(record_of("left_out", parser.parse_args(arguments), measure), Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """All rows that are missing."""
    players = {case: Player(CASES[case], options.prompts, seed=SEED) for case in options.case}
    for part in track(parts_of(options, SOLVERS), "left out"):
        player, run = players[part["case"]], part.pop("run")
        player.use(SOLVERS[part["case"]][run](player.config), guided=part["guided"])
        for budget in options.budgets:
            key = part | {"solver": run, "budget": budget}
            if not rows.like(key):
                rows.add(key | player.budget(budget))


def show(record: Row, console: Console) -> None:
    """The default at each budget, and how far it is above fewer steps and above holding."""
    rows = record["rows"]
    budgets = sorted({row["budget"] for row in rows}, reverse=True)
    table = new_table("default dB (above fewer steps; above holding) at so many of 28 steps", "run", *map(str, budgets))
    for part in dict.fromkeys((row["case"], row["solver"], row["guided"]) for row in rows):
        own = {row["budget"]: row for row in rows if (row["case"], row["solver"], row["guided"]) == part}
        name = f"{part[0]}, {part[1]}, {'guided' if part[2] else 'unguided'}"
        table.add_row(name, *(budget_cell(own.get(budget)) for budget in budgets))
    console.print(table)


if __name__ == "__main__":
    main()
