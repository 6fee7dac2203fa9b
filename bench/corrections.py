"""What corrections after gaps gain, on all reference pipelines and under the solvers whose step is known.

    python -m bench corrections [--case shapes-flux …] [--guidance guided] [--budgets 14 9 7] [--out out/bench]

PSNR in dB to the full run of 28 steps of the same solver, mean over held-out captions that nothing was chosen on: the
default's blend without and with corrections, over the same steps, and fewer steps of the solver. Rows are written as
soon as they are known; a stopped run goes on.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import new_table
from bench._resumable import Row, Rows, parser_of, parts_of, record_of
from bench.few_steps import BUDGETS, FULL_STEPS, Player, shifted
from bench.left_out import solver
from omnireuse import Blend, FixedSchedule
from omnireuse.arguments.targets import SPREAD
from reference.case import CASES

SEED = 7300


def _flow(name: str, shift: float) -> Callable[[Any], Any]:
    """A solver of higher order for flow matching. The pipelines' own scheduler has no settings that it shares."""

    def new(config: Any) -> Any:
        import diffusers

        return getattr(diffusers, name)(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)

    return new


_EULER = {f"Euler, shift {shift}": partial(shifted, shift=shift) for shift in ("1", "3", "6")}
_FLOW = _EULER | {"UniPC, shift 3": _flow("UniPCMultistepScheduler", 3.0)}
SOLVERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "shapes-flux": _FLOW,
    "shapes-wan": _FLOW | {"DPM++ 2M, shift 3": _flow("DPMSolverMultistepScheduler", 3.0)},
    "shapes-sd": {
        "DDIM": solver("DDIMScheduler"),
        "Euler": solver("EulerDiscreteScheduler"),
        "DPM++ 2M, Karras": solver("DPMSolverMultistepScheduler", use_karras_sigmas=True),
        "UniPC": solver("UniPCMultistepScheduler"),
    },
    "shapes-dev": _EULER,
}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, write ``corrections.json``, and show it."""
    parser = parser_of("corrections", __doc__, SOLVERS, prompts=8)
    parser.add_argument("--budgets", nargs="+", type=int, default=list(BUDGETS), help="of 28 steps")
    show(record_of("corrections", parser.parse_args(arguments), measure), Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """All rows that are missing."""
    players = {case: Player(CASES[case], options.prompts, seed=SEED) for case in options.case}
    for part in track(parts_of(options, SOLVERS), "corrections"):
        player, run = players[part["case"]], part.pop("run")
        player.use(SOLVERS[part["case"]][run](player.config), guided=part["guided"])
        for budget in options.budgets:
            key = part | {"solver": run, "budget": budget}
            if not rows.like(key):
                rows.add(key | measured(player, budget))


def measured(player: Player, budget: int) -> Row:
    """PSNR of each caption without and with corrections, and with fewer steps; and the means."""

    def reused(forecaster: Blend) -> list[float]:
        policy = FixedSchedule(num_computed=budget, **SPREAD)
        with omnireuse.enable(player.pipeline, policy=policy, forecaster=forecaster):
            return player.judged(player.run(FULL_STEPS), FULL_STEPS)

    fewer = player.judged(player.run(budget), FULL_STEPS)  # which makes the full run too, before anything is reused
    each = {"without": reused(Blend(corrects=False)), "corrected": reused(Blend()), "fewer": fewer}
    return {name: statistics.fmean(values) for name, values in each.items()} | {"each": each}


def show(record: Row, console: Console) -> None:
    """One row for each case, solver and guidance."""
    rows = record["rows"]
    budgets = sorted({row["budget"] for row in rows}, reverse=True)
    title = "without corrections → with, dB (fewer steps), at so many of 28 steps"
    table = new_table(title, "run", *map(str, budgets))
    for part in dict.fromkeys((row["case"], row["solver"], row["guided"]) for row in rows):
        own = {row["budget"]: row for row in rows if (row["case"], row["solver"], row["guided"]) == part}
        cells = [_cell(own.get(budget)) for budget in budgets]
        table.add_row(f"{part[0]}, {part[1]}, {'guided' if part[2] else 'unguided'}", *cells)
    console.print(table)


def _cell(row: Row | None) -> str:
    return "–" if row is None else f"{row['without']:.1f} → {row['corrected']:.1f} ({row['fewer']:.1f})"


if __name__ == "__main__":
    main()
