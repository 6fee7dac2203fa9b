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
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import new_table
from bench._resumable import Player, Row, Rows, parser_of, parts_of, record_of
from bench.few_steps import shifted, solver
from omnireuse import Steps
from omnireuse.pipelines.pictures import psnr
from reference.drawing import Array
from reference.figures import explain, panels_of

SEED = 12_000


def shifts(*wanted: str) -> dict[str, Callable[[Any], Any]]:
    """For each shift the scheduler that has it."""
    return {f"shift {shift}": partial(shifted, shift=shift) for shift in wanted}


RUNS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "shapes-flux": shifts("1", "3", "6"),
    "shapes-wan": shifts("1", "3", "6"),
    "shapes-dev": shifts("1", "3", "6"),
    "shapes-sd": {
        "DDIM": solver("DDIMScheduler"),
        "DPM++ 2M, Karras": solver("DPMSolverMultistepScheduler", use_karras_sigmas=True),
    },
    "faces": shifts("1", "1.5", "3", "6"),
}
BUDGETS = ("28:14", "28:9", "28:7", "50:20")
PICTURES = 3


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``tune.json``, and show a table."""
    parser = parser_of("tune", __doc__, RUNS, prompts=8)
    parser.add_argument("--run", nargs="+", default=None, help="names of runs, such as 'shift 1'; all by default")
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS), help="steps:computed steps")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--draws-of-fewer", type=int, default=2, help="draws that are tuned on 1 and 2 pictures too")
    options = parser.parse_args(arguments)
    rows = record_of("tune", options, measure)["rows"]
    show(rows, Console())
    draw(rows, options.out / "tuning.png")


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    parts = list(itertools.product(parts_of(options, RUNS), options.budgets))
    for part, budget in track(parts, "tuning"):
        steps, computed = map(int, budget.split(":"))
        key = part | {"steps": steps, "computed": computed}
        wanted = [key | {"method": name, "draw": 0} for name in ("fewer", "hold", "untuned")]
        for draw in range(options.draws):
            fewer = range(1, PICTURES) if draw < options.draws_of_fewer else ()
            wanted += [key | {"method": f"tuned {pictures}", "draw": draw} for pictures in (*fewer, PICTURES)]
        if missing := [each for each in wanted if not rows.like(each)]:
            player = Tuned(key, prompts=options.prompts, draws=options.draws)
            for each in missing:
                rows.add(each | player.play(each["method"], each["draw"]))


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("case", "run", "guided", "steps", "computed", "method", "draw"))


class Tuned(Player):
    """Pictures of one pipeline by each method, held against its full run.

    Args:
        key: of a part, with the numbers of steps.
        prompts, draws, prepare: as for `Player`.
    """

    def __init__(self, key: Row, *, prompts: int, draws: int, **prepare: Any) -> None:
        super().__init__(key, RUNS, prompts=prompts, draws=draws, drawn=PICTURES, seed=SEED, **prepare)
        self._steps, self._computed = key["steps"], key["computed"]
        self._full = self.run(self.judged, self._steps)

    def play(self, method: str, draw: int) -> Row:
        """The PSNR of each judged caption, and what tuning says."""
        if method == "fewer":
            return self._judge(self.run(self.judged, self._computed))
        if method == "hold":
            policy = Steps(steps=self._default_steps(), compute_last=False)
            with omnireuse.enable(self.pipeline, policy=policy, forecaster="hold", prediction_target="output"):
                return self._judge(self.run(self.judged, self._steps))
        if method == "untuned":
            with omnireuse.enable(self.pipeline, computed_steps=self._computed, tune=False):
                return self._judge(self.run(self.judged, self._steps))
        pictures = int(method.split()[1])
        with (
            tempfile.TemporaryDirectory() as folder,
            cache_in(folder),
            omnireuse.enable(self.pipeline, computed_steps=self._computed, tune=pictures) as handle,
        ):
            for place in self.drawn[draw][:pictures]:
                self.run([place], self._steps)
            found, tuning = self._judge(self.run(self.judged, self._steps)), handle.tuning
        about = {"state": tuning.state, "runs": tuning.runs, "expected": tuning.expected, "text": tuning.reason}
        return found | about

    def _default_steps(self) -> tuple[int, ...]:
        with omnireuse.enable(self.pipeline, computed_steps=self._computed, tune=False) as handle:
            self.run(self.judged[:1], self._steps)
            return tuple(sorted({event.step for event in handle.events if not event.reused}))

    def run(self, places: Sequence[int], steps: int) -> Array:
        """What the pipeline makes now of these captions, in so many steps."""
        prompts, seeds = [self.prompts[place] for place in places], [SEED + place for place in places]
        return self.case.generate(self.pipeline, prompts, seeds, num_inference_steps=steps, **self.guidance)

    def _judge(self, made: Array) -> Row:
        return {"each": [round(min(psnr(a, b), 100.0), 3) for a, b in zip(made, self._full, strict=True)]}


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Tuned plans lie in this folder, and tuning is on."""
    given = {"OMNIREUSE_CACHE_DIR": folder, "OMNIREUSE_TUNE": "1"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
    for key in dict.fromkeys(_key(row)[:5] for row in rows):
        yield key, [row for row in rows if _key(row)[:5] == key]


def _cells(rows: list[Row]) -> Iterator[list[str]]:
    for (case, run, guided, steps, computed), own in _cases(rows):
        cells = [f"{case}, {run}, {'guided' if guided else 'unguided'}, {computed} of {steps}"]
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
        for key in dict.fromkeys(_key(row)[:5] for row in rows if (row["steps"], row["computed"]) == (steps, computed)):
            own = [row for row in rows if _key(row)[:5] == key]
            means = {
                name: statistics.fmean(value for row in own if row["method"] == name for value in row["each"])
                for name in {row["method"] for row in own}
            }
            names = [f"tuned {pictures}" for pictures in range(1, PICTURES + 1)]
            if "untuned" in means and all(name in means for name in names):
                lines.append([0.0, *(means[name] - means["untuned"] for name in names)])
                panel.plot(range(PICTURES + 1), lines[-1], color="0.75", lw=0.9)
        if lines:
            panel.plot(
                range(PICTURES + 1), np.mean(lines, axis=0), "o-", color="#0f9b87", lw=2, label="mean of all cases"
            )
            panel.plot([], [], color="0.75", label="one model and solver")
        panel.set(title=f"{computed} of {steps} steps", xlabel="pictures seen", xticks=range(PICTURES + 1))
        panel.axhline(0, color="0.4", lw=0.8)
        panel.set_ylim(-2, 15)
    panels[0].legend(fontsize=8, loc="upper left", handlelength=1.2)
    figure.supylabel("dB above the untuned default", fontsize=10)
    explain(
        figure, "What a few full pictures of a model are worth: PSNR to the full run on prompts that tuning never saw."
    )
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
