"""What tuning gains on models that no constant was chosen on, by how many pictures it has seen.

    python -m bench tune [--case shapes-flux …] [--run "shift 1" …] [--guidance guided] [--budgets 28:14]

PSNR in dB to the full run for held-out captions. Beside the tuned pipeline stand, with as many computed steps, the
untuned default, the last output held over the default's steps, and the solver with so many steps of its own. A draw is
three captions that nothing is judged on: the first pictures of a new user. Each draw tunes with an empty cache folder.

A picture shows the gain over the untuned default by how many pictures were seen.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from bench._common import Row, Rows, in_words, new_table, parser_of, record_of
from bench._player import Player, Runs, add_run, parts_of
from reference.figures import OURS, explain, panels_of

SEED = 12_000
RUNS: Runs = {
    "shapes-flux": ("shift 1", "shift 3", "shift 6"),
    "shapes-wan": ("shift 1", "shift 3", "shift 6"),
    "shapes-dev": ("shift 1", "shift 3", "shift 6"),
    "shapes-sd": ("DDIM", "DPM++ 2M, Karras"),
    "faces": ("shift 1", "shift 1.5", "shift 3", "shift 6"),
}
BUDGETS = ("28:14", "28:9", "28:7", "50:20")
PICTURES = 3


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``tune.json``, and show a table."""
    parser = parser_of("tune", __doc__, RUNS, prompts=8)
    add_run(parser)
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), help="steps:computed steps")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--draws-of-fewer", type=int, default=2, help="draws that are tuned on 1 and 2 pictures too")
    options = parser.parse_args(arguments)
    rows = record_of("tune", options, measure)["rows"]
    show(rows, Console())
    draw(rows, options.out / "tuning.png")


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    for part, budget in track(list(itertools.product(parts_of(options, RUNS), options.budgets)), "tuning"):
        steps, computed = map(int, budget.split(":"))
        methods = [(name, 0) for name in ("fewer", "hold", "untuned")]
        for draw in range(options.draws):
            fewer = range(1, PICTURES) if draw < options.draws_of_fewer else ()
            methods += [(f"tuned {pictures}", draw) for pictures in (*fewer, PICTURES)]
        add(rows, part | {"steps": steps, "computed": computed}, methods, prompts=options.prompts, draws=options.draws)


def add(rows: Rows, key: Row, methods: list[tuple[str, int]], *, prompts: int, draws: int, **player: Any) -> None:
    """Add the missing rows of these methods, each with its draw; `player` goes on to `Player`."""
    missing = [pair for pair in methods if not rows.like(key | {"method": pair[0], "draw": pair[1]})]
    if not missing:
        return
    playing = Player(key, prompts + PICTURES * draws, judged=prompts, seed=SEED, steps=key["steps"], **player)
    for method, draw in missing:
        first, count = prompts + PICTURES * draw, int(method.removeprefix("tuned")) if "tuned " in method else 0
        found = playing.by(method, key["computed"], range(first, first + count))
        rows.add(key | {"method": method, "draw": draw} | found)


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("case", "run", "guided", "steps", "computed"))


NAMES = ("fewer", "hold", "untuned", *(f"tuned {pictures}" for pictures in range(1, PICTURES + 1)))
HEADINGS = ("run", *NAMES, f"gain of {PICTURES}", "worst draw", "runs")


def show(rows: list[Row], console: Console) -> None:
    """For each case the mean (5 % quantile, lowest) of each method; the worst draw of tuning against the default."""
    table = new_table("dB: mean (5 % quantile, lowest)", *HEADINGS)
    for cells in _cells(rows):
        table.add_row(*cells)
    console.print(table)
    console.print(_conclusion(rows))


def _cases(rows: list[Row]) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    for key in dict.fromkeys(map(_key, rows)):
        yield key, [row for row in rows if _key(row) == key]


def _cells(rows: list[Row]) -> Iterator[list[str]]:
    for (*_, steps, computed), own in _cases(rows):
        cells = [f"{in_words(own[0])}, {computed} of {steps}"]
        for name in NAMES:
            each = [value for row in own if row["method"] == name for value in row["each"]]
            cells.append(f"{np.mean(each):.1f} ({np.quantile(each, 0.05):.0f}, {min(each):.0f})" if each else "–")
        gains, runs = gains_of(own), [row["runs"] for row in own if row["method"] == f"tuned {PICTURES}"]
        if gains:
            cells += [f"{statistics.fmean(gains):+.1f}", f"{min(gains):+.1f}", f"{statistics.fmean(runs):.1f}"]
        yield cells + ["–"] * (len(HEADINGS) - len(cells))


def _conclusion(rows: list[Row]) -> str:
    cases = [gains for _, own in _cases(rows) if (gains := gains_of(own))]
    gains = [gain for each in cases for gain in each]
    means = [statistics.fmean(each) for each in cases]
    return (
        f"{len(gains)} draws of {PICTURES} pictures in {len(cases)} cases: {statistics.fmean(gains):+.1f} dB on "
        f"average over the untuned default, lowest {min(gains):+.1f}; {sum(gain < -1.5 for gain in gains)} below -1.5; "
        f"lowest mean of a case {min(means):+.1f}, {sum(mean < -0.3 for mean in means)} below -0.3"
    )


def gains_of(rows: list[Row]) -> list[float]:
    """The gain in dB of each draw of three pictures over the untuned default."""
    untuned = [statistics.fmean(row["each"]) for row in rows if row["method"] == "untuned"]
    tuned = [statistics.fmean(row["each"]) for row in rows if row["method"] == f"tuned {PICTURES}"]
    return [each - untuned[0] for each in tuned] if untuned else []


def draw(rows: list[Row], path: Path) -> None:
    """The gain over the untuned default against the pictures seen, a line for each case and one for their mean."""
    budgets = sorted({(row["steps"], row["computed"]) for row in rows}, reverse=True)
    figure, panels = panels_of(len(budgets), sharey=True)
    figure.set_size_inches(5.2, 5.4)  # narrow: a phone shows it on its page, and the letters must stay readable
    for panel, (steps, computed) in zip(panels, budgets, strict=True):
        lines = []
        for key in dict.fromkeys(_key(row) for row in rows if (row["steps"], row["computed"]) == (steps, computed)):
            own = [row for row in rows if _key(row) == key]
            means = {
                name: statistics.fmean(value for row in own if row["method"] == name for value in row["each"])
                for name in {row["method"] for row in own}
            }
            names = [f"tuned {pictures}" for pictures in range(1, PICTURES + 1)]
            if "untuned" in means and all(name in means for name in names):
                lines.append([0.0, *(means[name] - means["untuned"] for name in names)])
                panel.plot(range(PICTURES + 1), lines[-1], color="0.75", lw=0.9)
        if lines:
            panel.plot(range(PICTURES + 1), np.mean(lines, axis=0), "o-", color=OURS, lw=2, label="mean of all cases")
            panel.plot([], [], color="0.75", label="one model and solver")
        panel.set(title=f"{computed} of {steps} steps", xlabel="pictures seen", xticks=range(PICTURES + 1))
        panel.axhline(0, color="0.4", lw=0.8)
        panel.set_ylim(-3, 15)
    panels[0].legend(fontsize=8, loc="upper left", handlelength=1.2)
    figure.supylabel("dB above the untuned default", fontsize=10)
    explain(
        figure, "What a few full pictures of a model are worth: PSNR to the full run on prompts that tuning never saw."
    )
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
