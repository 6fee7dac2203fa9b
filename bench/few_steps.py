"""The default against fewer steps of the same solver, at equal computed steps, from 2 to 60 steps and at every shift.

    python -m bench few_steps [--case shapes-flux] [--run "shift 1" …] [--guidance guided] [--out out/bench]

PSNR in dB to the full run of the same scheduler and shift, mean over held-out captions. Beside the default stand, with
as many computed steps, the same solver with so many steps of its own, the last output held over the default's own steps
and, at 28 steps, the same count spread by step number. Where the default computes more than half of the steps, half of
them are shown too (`speedup=2`).

A second part asks for 14, 9 and 7 of 28 steps, on captions of its own.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import Row, Rows, in_words, new_table, parser_of, record_of
from bench._player import STEPS, Player, Runs, add_run, parts_of
from omnireuse import Spread
from reference.figures import PEERS, explain, panels_of

DEFAULT = omnireuse.Strategy.default()
RUNS: Runs = dict.fromkeys(("shapes-flux", "shapes-wan"), ("shift 1", "shift 3", "shift 6", "shift dynamic"))
LENGTHS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 50, 60)
CAPTIONS = {"shapes-flux": 4, "shapes-wan": 3}
"""At most, for each length."""
BUDGETS = (14, 9, 7)
SEED, BUDGET_SEED = 1000, 7700
NOISE_DB = 0.3
"""How far below fewer steps the default may lie before it counts as a loss."""


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``few_steps.json`` and a picture, and show tables."""
    parser = parser_of("few_steps", __doc__, RUNS, prompts=8)
    add_run(parser)
    parser.add_argument("--steps", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--budgets", nargs="*", type=int, default=list(BUDGETS), help=f"of {STEPS} steps")
    options = parser.parse_args(arguments)
    rows = record_of("few_steps", options, measure)["rows"]
    lengths, budgets = ([row for row in rows if row["part"] == part] for part in ("lengths", "budgets"))
    show(lengths, budgets, Console())
    if lengths:
        draw(lengths, options.out / "few-steps.png")


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    for part in track(parts_of(options, RUNS), "few steps"):
        lengths = [{"part": "lengths", **part, "steps": count} for count in options.steps]
        if missing := [key for key in lengths if not rows.like(key)]:
            player = Player(part, min(options.prompts, CAPTIONS[part["case"]]), seed=SEED)
            for key in missing:
                rows.add(key | length(player, key["steps"]))
        budgets = [{"part": "budgets", **part, "budget": count} for count in options.budgets]
        if missing := [key for key in budgets if not rows.like(key)]:
            player = Player(part, options.prompts, seed=BUDGET_SEED)
            for key in missing:
                rows.add(key | budget(player, key["budget"]))


def length(player: Player, steps: int) -> Row:
    """PSNR of the default, of half of the steps and of their rivals in a run of so many steps."""

    def psnr(made: Any) -> float:
        return statistics.fmean(player.judge(made, steps))

    def beside_fewer(policy: Any) -> Row:
        made, computed = player.reusing(steps, policy=policy, forecaster=DEFAULT.forecaster)
        row: Row = {"computed": len(computed), "psnr": psnr(made)}
        return row if len(computed) == steps else row | {"at": computed, "fewer": psnr(player.full(len(computed)))}

    row: Row = {"default": beside_fewer(DEFAULT.policy), "half": None}
    if "fewer" in row["default"]:
        row["default"]["hold"] = psnr(player.reusing(steps, policy=DEFAULT.policy, forecaster="hold")[0])
    if steps == STEPS:
        by_number = Spread(speedup=2.0, by_noise=False)
        made, _ = player.reusing(steps, policy=by_number, forecaster=DEFAULT.forecaster)
        row["default"]["by_number"] = psnr(made)
    if row["default"]["computed"] > steps / 2 + 1:
        row["half"] = beside_fewer(Spread(speedup=2.0))
    return row


def budget(player: Player, count: int) -> Row:
    """PSNR where `count` of 28 steps are asked for, beside holding over the same steps and fewer steps."""
    made, computed = player.reusing(computed_steps=count)
    found = {"psnr": made, "hold": player.holding(computed), "fewer": player.full(count)}
    each = {name: player.judge(pictures) for name, pictures in found.items()}
    return {name: statistics.fmean(values) for name, values in each.items()} | {"at": computed, "each": each}


def margin(row: Row | None) -> float | None:
    """PSNR above fewer steps; None where everything is computed."""
    return None if row is None or "fewer" not in row else row["psnr"] - row["fewer"]


def show(lengths: Sequence[Row], budgets: Sequence[Row], console: Console) -> None:
    """Margins over fewer steps by length and shift, and by budget."""
    runs = list(dict.fromkeys(row["run"] for row in lengths))
    for case, guided in dict.fromkeys((row["case"], row["guided"]) for row in lengths):
        rows = [row for row in lengths if (row["case"], row["guided"]) == (case, guided)]
        title = f"{_words(rows[0])}: computed, default dB (above fewer steps; above holding)"
        table = new_table(title, "steps", *runs, *(f"half, {run}" for run in runs))
        for steps in sorted({row["steps"] for row in rows}):
            at = {row["run"]: row for row in rows if row["steps"] == steps}
            cells = [_cell(at.get(run), kind) for kind in ("default", "half") for run in runs]
            table.add_row(str(steps), *cells)
        console.print(table)
    lost = [row for row in lengths if (margin(row["default"]) or 0) < -NOISE_DB]
    console.print(f"the default loses more than {NOISE_DB} dB to fewer steps in {len(lost)} of {len(lengths)}")
    for row in lost:
        console.print(f"  {in_words(row)}, {row['steps']} steps")
    counts = sorted({row["budget"] for row in budgets}, reverse=True)
    table = new_table("default dB (above fewer steps; above holding) at so many of 28 steps", "run", *map(str, counts))
    for part in dict.fromkeys(map(in_words, budgets)):
        own = {row["budget"]: row for row in budgets if in_words(row) == part}
        table.add_row(part, *(_above(own[count]) if count in own else "–" for count in counts))
    console.print(table)


def _words(row: Row) -> str:
    return f"{'images' if row['case'] == 'shapes-flux' else 'clips'}, {'guided' if row['guided'] else 'unguided'}"


def _above(row: Row) -> str:
    hold = f"; {row['psnr'] - row['hold']:+.1f}" if "hold" in row else ""
    return f"{row['psnr']:.1f} ({row['psnr'] - row['fewer']:+.1f}{hold})"


def _cell(row: Row | None, kind: str) -> str:
    own = None if row is None else row[kind]
    if own is None:
        return "–"
    return f"{own['computed']}: {_above(own)}" if "fewer" in own else "all"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Margins over fewer steps against the number of steps: solid the default, dotted half of the steps."""
    parts = list(dict.fromkeys(map(_words, rows)))
    figure, panels = panels_of(len(parts), sharey=True)
    runs = list(dict.fromkeys(row["run"] for row in rows))
    for panel, part in zip(panels, parts, strict=True):
        for number, run in enumerate(runs):
            own = sorted((r for r in rows if (_words(r), r["run"]) == (part, run)), key=lambda row: row["steps"])
            for kind, style in (("default", "o-"), ("half", "x:")):
                points = [(row["steps"], margin(row[kind])) for row in own]
                known = [(steps, above) for steps, above in points if above is not None]
                if known:
                    label = run if kind == "default" else None
                    panel.plot(*zip(*known, strict=True), style, color=PEERS[number], ms=3, lw=1, label=label)
        panel.axhline(0, color="black", lw=0.8)
        panel.set_title(part, fontsize=10)
        panel.set_xlabel("steps of the run")
    figure.supylabel("dB above fewer steps (same number computed)", fontsize=10)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    explain(
        figure,
        "How much closer to the full run than fewer steps of the solver, for as many computed steps: above the line "
        "is better. Solid: the default, which computes runs of fewer than 20 steps whole. Dotted: half of the steps.",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
