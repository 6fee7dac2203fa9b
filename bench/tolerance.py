"""What `tolerance=` leaves in the final latents, caption by caption: the relative L1 error of reuse to the full run.

    python -m bench tolerance [--case shapes-flux …] [--run "shift 1" …] [--guidance guided] [--methods fixed untuned]

A tolerance is kept where nine of ten captions leave no more than it. Four methods:

- "fixed": the untuned default with so many computed steps, by halving, to find the smallest number that keeps each
  tolerance;
- "untuned": `tolerance=` with `tune=False`, each caption by itself;
- "tuned": `tolerance=` after three captions of its own that nothing is judged on, in several draws;
- "fewer": the solver with as many steps of its own as the two computed on average.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.progress import Progress

import omnireuse
from bench._common import no_warnings, write_record
from bench._tolerance_figures import draw, show
from bench.left_out import SOLVERS
from bench.tune import PICTURES, SHIFTED, cache_in
from omnireuse.evaluation.record import environment
from reference.case import CASES

RUNS = {"shapes-flux": SHIFTED, "shapes-wan": SHIFTED, "shapes-dev": SHIFTED, "shapes-sd": SOLVERS["shapes-sd"]}
TOLERANCES = (0.02, 0.05, 0.1, 0.2)
METHODS = ("fixed", "untuned", "tuned", "fewer")
STEPS, SEED, SHARE = 28, 15_000, 0.9

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``tolerance.json`` and a picture, and show a table."""
    parser = argparse.ArgumentParser(prog="python -m bench tolerance", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--run", nargs="+", default=None, help="names of runs, such as 'shift 1'; all by default")
    parser.add_argument("--guidance", nargs="+", choices=("guided", "unguided"), default=["guided", "unguided"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--tolerances", nargs="+", type=float, default=list(TOLERANCES))
    parser.add_argument("--prompts", type=int, default=10, help="held-out captions")
    parser.add_argument("--draws", type=int, default=2, help="of three captions to tune on")
    parser.add_argument("--show", action="store_true", help="only show the record")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    if not options.show:
        with no_warnings(), torch.no_grad():
            measure(options)
    rows = json.loads((options.out / "tolerance.json").read_text())["rows"]
    show(rows, Console())
    draw(rows, options.out / "tolerance.png")


def measure(options: argparse.Namespace) -> None:
    """Run what is missing, and write the record."""
    kept = options.out / "tolerance.json"
    record: Row = json.loads(kept.read_text()) if kept.is_file() else {"rows": []}
    record |= {"command": "python -m bench tolerance", "environment": environment()}
    parts = [
        part
        for case in options.case
        for part in itertools.product([case], options.run or RUNS[case], options.guidance)
        if part[1] in RUNS[case]
    ]
    with Progress() as progress:
        task = progress.add_task("tolerance", total=len(parts) * len(options.methods))
        for (case, run, guidance), method in itertools.product(parts, options.methods):
            part = {"case": case, "run": run, "guided": guidance == "guided"}
            rows = Rows(record, part, options)
            if method == "fixed":
                for tolerance in options.tolerances:
                    smallest_kept(rows, tolerance)
            elif method == "fewer":
                for count in counts_of(rows.own(), options.tolerances):
                    rows.get("fewer", count)
            else:
                for tolerance, draw in itertools.product(options.tolerances, range(options.draws)):
                    if method == "tuned" or draw == 0:
                        rows.get(method, tolerance, draw)
            progress.advance(task)


def smallest_kept(rows: Rows, tolerance: float) -> int:
    """The smallest number of computed steps at which the default keeps a tolerance, by halving."""
    below, kept = 1, STEPS
    while kept - below > 1:
        middle = (below + kept) // 2
        if is_kept(rows.get("fixed", middle)["errors"], tolerance):
            kept = middle
        else:
            below = middle
    return kept


def is_kept(errors: Sequence[float], tolerance: float) -> bool:
    """Whether at least nine of ten errors are within the tolerance."""
    return sum(error <= tolerance for error in errors) >= SHARE * len(errors)


def counts_of(rows: Sequence[Row], tolerances: Sequence[float]) -> list[int]:
    """How many steps `tolerance=` computes on average, untuned and tuned, for each tolerance."""
    counts = set()
    for method, tolerance in itertools.product(("untuned", "tuned"), tolerances):
        own = [row["computed"] for row in rows if row["method"] == method and row["setting"] == tolerance]
        if own:
            counts.add(round(statistics.fmean(own)))
    return sorted(counts)


class Rows:
    """The rows of one part, measured where they are missing."""

    def __init__(self, record: Row, part: Row, options: argparse.Namespace) -> None:
        self._record, self._part, self._options = record, part, options
        self._player: Player | None = None

    def own(self) -> list[Row]:
        """Those that are known."""
        return [row for row in self._record["rows"] if all(row[name] == value for name, value in self._part.items())]

    def get(self, method: str, setting: float, draw: int = 0) -> Row:
        """The row of a method at a setting: a tolerance or a number of steps."""
        key = {"method": method, "setting": setting, "draw": draw}
        known = [row for row in self.own() if all(row[name] == value for name, value in key.items())]
        if known:
            return known[0]
        if self._player is None:
            self._player = Player(self._part, prompts=self._options.prompts, draws=self._options.draws)
        row: Row = {**self._part, **key, **self._player.play(method, setting, draw)}
        self._record["rows"].append(row)
        write_record(self._record, self._options.out, "tolerance", quiet=True)
        return row


class Player:
    """One pipeline in runs of one kind, with captions to judge by and captions to tune on."""

    _pipelines: ClassVar[dict[str, tuple[Any, Any]]] = {}

    def __init__(self, part: Row, *, prompts: int, draws: int) -> None:
        self._case = CASES[part["case"]]
        if self._case.name not in self._pipelines:
            pipeline = self._case.load()
            pipeline.set_progress_bar_config(disable=True)
            self._pipelines[self._case.name] = pipeline, pipeline.scheduler.config
        self.pipeline, config = self._pipelines[self._case.name]
        self.pipeline.scheduler = RUNS[part["case"]][part["run"]](config)
        self._guidance = {} if part["guided"] else {self._case.guidance: 1.0}
        scenes = self._case.held_out(prompts + PICTURES * draws, seed=SEED)
        self._prompts = [self._case.caption(scene) for scene in scenes]
        self._judged = range(prompts)
        self._full = self.latents(self._judged)

    def play(self, method: str, setting: float, draw: int) -> Row:
        """The error of each judged caption, how many steps compute on average, and what tuning says."""
        if method == "fewer":
            return {"computed": setting, "errors": self._errors(self.latents(self._judged, int(setting)))}
        if method == "fixed":
            with omnireuse.enable(self.pipeline, computed_steps=int(setting), tune=False):
                return {"computed": setting, "errors": self._errors(self.latents(self._judged))}
        if method == "untuned":
            with omnireuse.enable(self.pipeline, tolerance=setting, tune=False) as handle:
                return self._one_by_one(handle)
        first = len(self._judged) + PICTURES * draw
        with (
            tempfile.TemporaryDirectory() as folder,
            cache_in(folder),
            omnireuse.enable(self.pipeline, tolerance=setting) as handle,
        ):
            for place in range(first, first + PICTURES):
                self.latents([place])
            tuning = handle.tuning
            if tuning.state == "measuring":  # shadows are due before the next picture
                self.latents([first])
                tuning = handle.tuning
            found = self._one_by_one(handle) if tuning.expected is None else self._together(handle)
        about = {"state": tuning.state, "runs": tuning.runs, "expected": tuning.expected, "text": tuning.reason}
        return found | about

    def _one_by_one(self, handle: omnireuse.Handle) -> Row:
        before = len(handle.events)
        made = torch.cat([self.latents([place]) for place in self._judged])
        return {"computed": _computed(handle, before) / len(self._judged), "errors": self._errors(made)}

    def _together(self, handle: omnireuse.Handle) -> Row:
        before = len(handle.events)
        errors = self._errors(self.latents(self._judged))
        return {"computed": _computed(handle, before), "errors": errors}

    def latents(self, places: Sequence[int], steps: int = STEPS) -> torch.Tensor:
        """The final latents of these captions as the pipeline makes them now."""
        call = {**self._case.sampling, "num_inference_steps": steps, **self._guidance}
        if isinstance(call.get("negative_prompt"), str):
            call["negative_prompt"] = [call["negative_prompt"]] * len(places)
        prompts = [self._prompts[place] for place in places]
        generators = [torch.Generator().manual_seed(SEED + place) for place in places]
        made = self.pipeline(prompts, generator=generators, output_type="latent", **call)
        latents: torch.Tensor = getattr(made, self._case.output)
        return latents.double()

    def _errors(self, made: torch.Tensor) -> list[float]:
        axes = tuple(range(1, made.ndim))
        errors = (made - self._full).abs().sum(axes) / self._full.abs().sum(axes)
        return [round(error, 6) for error in errors.tolist()]


def _computed(handle: omnireuse.Handle, before: int) -> int:
    """How many steps of all runs were computed since there were so many events."""
    return len({(event.run, event.step) for event in handle.events[before:] if not event.reused})


if __name__ == "__main__":
    main()
