"""Whether a run can tell how hard its picture is, early enough to give it more steps than an easy one.

    python -m bench guard [--case shapes-flux …] [--guidance guided] [--prompts 16] [--show]

28 steps. For each number of computed steps there is one plan for all captions alike, with weights that are fitted on
three other captions as tuning fits them. Each run notes the error that a forecast would have had at each step that is
computed anyway. Beside these plans there are *switched* ones: they follow the plan of 14 or 9 computed steps up to a
decision, and then that of more steps, that of fewer, or compute all steps that are left.

From these rows alone follow (`bench._guard_figures`): what an oracle gains that knows the PSNR of each picture under
each plan; how the errors of the first computed steps rank the pictures; what is left to win after each decision; and
what rules gain that compare the errors with those of three other pictures. What control at every computed step gains is
known already from ``python -m bench tolerance``.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import new_table, write_record
from bench._guard_figures import conclude
from bench._resumable import Row, Rows, parser_of, record_of
from omnireuse.arguments.targets import SPREAD
from omnireuse.calibration.runner import PipelineRunner
from omnireuse.forecasters import Fitted, Forecaster
from omnireuse.handle import Handle
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.closeness import capped_psnr
from omnireuse.planning.planner import Planner
from omnireuse.tuning.trials import MeasuredCall, Trial, finished
from reference.case import CASES

TOLERANCE = Path(__file__).parent / "results" / "tolerance.json"
"""The errors of control at every computed step, and of fixed numbers of steps."""
SEED, STEPS, FITTED_ON = 13_000, 28, 3
BUDGETS = (8, 9, 10, 11, 12, 13, 14, 16, 18)
SWITCHED = {14: {"more": 18, "fewer": 10}, 9: {"more": 11, "fewer": 8}}
"""The plans that are left after a decision, and those that follow."""
GROWTH = 2.0
"""Of the plan that is tried for each budget beside the default's steps (`Planner`)."""

Steps = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Watched(omnireuse.Steps):
    """A schedule whose forecast errors are measured for each picture by itself."""

    needs_error: ClassVar[bool] = True


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``guard.json``, and show tables."""
    options = parser_of("guard", __doc__, CASES, prompts=16).parse_args(arguments)
    record = record_of("guard", options, measure)
    record["conclusion"] = conclude(record["rows"], json.loads(TOLERANCE.read_text())["rows"])
    write_record(record, options.out, "guard")
    show(record, Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    for guidance, case in track(list(itertools.product(options.guidance, options.case)), "guard"):
        part = {"case": case, "guided": guidance == "guided"}
        known = {(row["kind"], row["budget"], row["after"]): tuple(row["steps"]) for row in rows.like(part)}
        player: Player | None = None
        for key in _wanted(known):
            if key not in known:
                player = player or Player(part, prompts=options.prompts)
                row = player.play(key, known)
                known[key] = tuple(row["steps"])
                rows.add({**part, **row})


Key = tuple[str, int, int | None]
"""What a plan is, its budget, and after how many computed steps it was decided on."""


def _wanted(known: dict[Key, Steps]) -> Iterator[Key]:
    """The plans of all budgets first; switched plans follow from them."""
    yield from (("plan", budget, None) for budget in BUDGETS)
    for budget in SWITCHED:
        steps = known["plan", budget, None]
        leading = next((place for place, step in enumerate(steps) if step != place), len(steps))
        yield from ((kind, budget, leading) for kind in ("more", "fewer"))
        yield from ((kind, budget, leading + 2) for kind in ("more", "fewer", "all"))


class Player:
    """One pipeline with or without guidance, its captions, and their full run."""

    def __init__(self, part: Row, *, prompts: int) -> None:
        case = CASES[part["case"]]
        self._pipeline = pipeline = case.load()
        call = {**case.sampling, "num_inference_steps": STEPS, **({} if part["guided"] else {case.guidance: 1.0})}
        captions = [case.caption(scene) for scene in case.held_out(prompts + FITTED_ON, seed=SEED)]
        self._runner = PipelineRunner(pipeline, captions, seed=SEED, call=call)
        self._judged, self._fitted = range(prompts), range(prompts, prompts + FITTED_ON)
        self._full = self._runner.full_run(self._judged).pictures
        self._measured = self._runner.full_run(self._fitted, record=True)
        self._noises = self._measured.coordinates

    def play(self, key: Key, known: dict[Key, Steps]) -> Row:
        """The steps of a plan, and of each judged caption its PSNR and the errors at computed steps."""
        kind, budget, after = key
        if after is None:
            steps, forecaster = self._best(budget)
        else:
            steps = switched(known["plan", budget, None], after, kind, known)
            forecaster = self._forecaster(steps)[0]
        # Where branches of guidance have weights of their own, each has an error of its own, and their mean counts.
        strategy = Strategy.where_it_fits(Watched(steps=steps, compute_last=False), forecaster)
        with Handle(self._pipeline, strategy, name="plan") as handle:
            made = self._runner.pictures(self._judged)
            events = handle.events
        seen: dict[tuple[int | None, int], list[float]] = {}
        for event in events:
            if event.error is not None and not event.reused:
                seen.setdefault((event.sample, event.step), []).append(event.error)
        errors = {place: float(f"{statistics.fmean(each):.3g}") for place, each in seen.items()}
        pairs = zip(made, self._full, strict=True)
        return {
            "kind": kind,
            "budget": budget,
            "after": after,
            "steps": list(steps),
            "psnr": [round(capped_psnr(*pair), 2) for pair in pairs],
            "errors": [] if after else [[errors.get((place, step)) for step in steps] for place in self._judged],
        }

    def _best(self, budget: int) -> tuple[Steps, Forecaster]:
        default = tuple(sorted(omnireuse.Spread(num_computed=budget, **SPREAD).schedule(STEPS, self._noises)))
        assert self._measured.full is not None
        planner = Planner(self._measured.full.products, self._noises, fewest=budget, growth=GROWTH)
        tried = [(steps, *self._forecaster(steps)) for steps in dict.fromkeys([planner.best(budget), default])]
        best = max(tried, key=lambda each: each[2])
        return best[0], best[1]

    def _forecaster(self, steps: Steps) -> tuple[Forecaster, float]:
        """What forecasts along these steps, and its summed PSNR on the captions that it was fitted on."""
        assert self._measured.full is not None
        trial = Trial.of_fit(steps, STEPS)
        call = MeasuredCall(replay=self._fitted, full=self._measured.full)
        finished(trial.lead([call], self._runner, [self._measured.pictures]))
        fitted = Fitted(coordinates=self._noises, weights=trial.weights, computed=steps)
        return fitted, sum(trial.closeness)


def switched(steps: Steps, after: int, kind: str, known: dict[Key, Steps]) -> Steps:
    """A plan up to a number of computed steps, then that of more or of fewer steps, or all steps."""
    begun, budget = steps[:after], len(steps)
    then = range(STEPS) if kind == "all" else known["plan", SWITCHED[budget][kind], None]
    return (*begun, *(step for step in then if step > begun[-1]))


def show(record: Row, console: Console) -> None:
    """What is there to win, and what rules gain."""
    found = record["conclusion"]
    headings = (
        "mean (5 %)",
        "spread",
        "oracle",
        "hardness",
        "same floor",
        "rank needed",
        "before",
        "later",
        "end",
        "all later",
    )
    table = new_table("dB; rank correlation of error and PSNR; steps", "run", *headings, "left out")
    for case in found["cases"]:
        ranks = [
            "–" if case[f"rank {name}"]["mean"] is None else "{last:.2f} {mean:.2f}".format(**case[f"rank {name}"])
            for name in ("before", "later", "end")
        ]
        oracles = [f"{case[name]:.1f}" if case[name] is not None else "–" for name in ("oracle", "hardness")]
        left = case.get("left out", {}).get("gain")
        table.add_row(
            f"{case['part']}, {case['budget']}",
            f"{case['mean']:.1f} ({case['floor']:.1f})",
            f"{case['spread']:.1f}",
            *oracles,
            f"{case['steps for the same floor']:.1f}",
            "–" if case["rank needed"] is None else f"{case['rank needed']:.2f}",
            *ranks,
            f"{case['all later']:.1f} ({case['floor of all later']:.1f})",
            "–" if left is None else f"{left['floor']:+.1f}",
        )
    console.print(table)
    rules = new_table("gains at equal steps, dB", "rule", "5 %", "mean", "by others'", "by hardness", "cases of 1.5 dB")
    for name, means in found["rules"].items():
        figures = [f"{means[each]:+.2f}" for each in ("gain", "mean", "by others'", "by hardness")]
        rules.add_row(name, *figures, str(means["cases of 1.5 dB"]))
    console.print(rules)
    console.print(f"the best rule of the other models: {found['left out']}")
    console.print(f"gains of the oracles in the floor: {found['oracles']}")
    console.print(f"error control over fixed numbers of steps: {found['error control']}")


if __name__ == "__main__":
    main()
