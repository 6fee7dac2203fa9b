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
import statistics
import tempfile
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.progress import track

import omnireuse
from bench._resumable import Player, Row, Rows, parser_of, parts_of, record_of
from bench._tolerance_figures import draw, show
from bench.left_out import SOLVERS
from bench.tune import PICTURES, cache_in, shifts

RUNS = {
    "shapes-flux": shifts("1", "3", "6"),
    "shapes-wan": shifts("1", "3", "6"),
    "shapes-dev": shifts("1", "3", "6"),
    "shapes-sd": SOLVERS["shapes-sd"],
    "faces": shifts("1.5", "3"),
}
TOLERANCES = (0.02, 0.05, 0.1, 0.2)
METHODS = ("fixed", "untuned", "tuned", "fewer")
STEPS, SEED, SHARE = 28, 15_000, 0.9


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``tolerance.json`` and a picture, and show a table."""
    parser = parser_of("tolerance", __doc__, RUNS, prompts=10)
    parser.add_argument("--run", nargs="+", default=None, help="names of runs, such as 'shift 1'; all by default")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--tolerances", nargs="+", type=float, default=list(TOLERANCES))
    parser.add_argument("--draws", type=int, default=2, help="of three captions to tune on")
    options = parser.parse_args(arguments)
    rows = record_of("tolerance", options, measure)["rows"]
    show(rows, Console())
    draw(rows, options.out / "tolerance.png")


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    for part, method in track(list(itertools.product(parts_of(options, RUNS), options.methods)), "tolerance"):
        own = Part(rows, part, options)
        if method == "fixed":
            for tolerance in options.tolerances:
                smallest_kept(own, tolerance)
        elif method == "fewer":
            for count in counts_of(rows.like(part), options.tolerances):
                own.get("fewer", count)
        else:
            for tolerance, draw in itertools.product(options.tolerances, range(options.draws)):
                if method == "tuned" or draw == 0:
                    own.get(method, tolerance, draw)


def smallest_kept(rows: Part, tolerance: float) -> int:
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


class Part:
    """The rows of one part, measured where they are missing."""

    def __init__(self, rows: Rows, part: Row, options: argparse.Namespace) -> None:
        self._rows, self._part, self._options = rows, part, options
        self._player: Latents | None = None

    def get(self, method: str, setting: float, draw: int = 0) -> Row:
        """The row of a method at a setting: a tolerance or a number of steps."""
        key = {**self._part, "method": method, "setting": setting, "draw": draw}
        if not self._rows.like(key):
            self._player = self._player or Latents(self._part, self._options)
            self._rows.add({**key, **self._player.play(method, setting, draw)})
        return self._rows.like(key)[0]


class Latents(Player):
    """The final latents of one pipeline by each method, held against those of its full run."""

    def __init__(self, part: Row, options: argparse.Namespace) -> None:
        super().__init__(part, RUNS, prompts=options.prompts, draws=options.draws, drawn=PICTURES, seed=SEED)
        self._full = self.latents(self.judged)

    def play(self, method: str, setting: float, draw: int) -> Row:
        """The error of each judged caption, how many steps compute on average, and what tuning says."""
        if method == "fewer":
            return {"computed": setting, "errors": self._errors(self.latents(self.judged, int(setting)))}
        if method == "fixed":
            with omnireuse.enable(self.pipeline, computed_steps=int(setting), tune=False):
                return {"computed": setting, "errors": self._errors(self.latents(self.judged))}
        if method == "untuned":
            with omnireuse.enable(self.pipeline, tolerance=setting, tune=False) as handle:
                return self._one_by_one(handle)
        first = self.drawn[draw][0]
        with (
            tempfile.TemporaryDirectory() as folder,
            cache_in(folder),
            omnireuse.enable(self.pipeline, tolerance=setting) as handle,
        ):
            for place in self.drawn[draw]:
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
        made = torch.cat([self.latents([place]) for place in self.judged])
        return {"computed": _computed(handle, before) / len(self.judged), "errors": self._errors(made)}

    def _together(self, handle: omnireuse.Handle) -> Row:
        before = len(handle.events)
        errors = self._errors(self.latents(self.judged))
        return {"computed": _computed(handle, before), "errors": errors}

    def latents(self, places: Sequence[int], steps: int = STEPS) -> torch.Tensor:
        """The final latents of these captions as the pipeline makes them now."""
        call = {**self.case.sampling, "num_inference_steps": steps, **self.guidance}
        if isinstance(call.get("negative_prompt"), str):
            call["negative_prompt"] = [call["negative_prompt"]] * len(places)
        prompts = [self.prompts[place] for place in places]
        generators = [torch.Generator().manual_seed(SEED + place) for place in places]
        made = self.pipeline(prompts, generator=generators, output_type="latent", **call)
        latents: torch.Tensor = getattr(made, self.case.output)
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
