"""What `tolerance=` leaves in the final latents, caption by caption: the relative L1 error of reuse to the full run.

    python -m bench tolerance [--case shapes-flux …] [--run "shift 1" …] [--guidance guided] [--methods fixed untuned]

A tolerance is kept where nine of ten captions leave no more than it. Four methods:

- "fixed": the untuned default with so many computed steps, by halving, to find the smallest number that keeps each
  tolerance;
- "untuned": `tolerance=` with `tune=False`, each caption by itself;
- "tuned": `tolerance=` after some captions of its own that nothing is judged on, in several draws;
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
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

import omnireuse
from bench._resumable import Player, Row, Rows, parser_of, parts_of, record_of
from bench._tolerance_figures import draw, show, within
from bench.few_steps import solver
from bench.tune import cache_in, shifts
from omnireuse.tuning.budget import JUDGED

RUNS = {
    "shapes-flux": shifts("1", "3", "6"),
    "shapes-wan": shifts("1", "3", "6"),
    "shapes-dev": shifts("1", "3", "6"),
    "shapes-sd": {
        "DDIM": solver("DDIMScheduler"),
        "DPM++ 2M, Karras": solver("DPMSolverMultistepScheduler", use_karras_sigmas=True),
        "Euler, ancestral": solver("EulerAncestralDiscreteScheduler"),
    },
    "faces": shifts("1.5", "3"),
}
TOLERANCES = (0.02, 0.05, 0.1, 0.2)
METHODS = ("fixed", "untuned", "tuned", "fewer")
STEPS, SEED, SHARE = 28, 15_000, 0.9


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``tolerance.json`` and a picture, and show a table."""
    parser = parser_of("tolerance", __doc__, RUNS, prompts=10)
    add_options(parser, METHODS)
    parser.add_argument("--tolerances", dest="aims", nargs="+", type=float, default=list(TOLERANCES))
    options = parser.parse_args(arguments)
    rows = record_of("tolerance", options, partial(measure, player=Latents))["rows"]
    show(rows, Console())
    draw(rows, options.out / "tolerance.png")


def add_options(parser: argparse.ArgumentParser, methods: Sequence[str]) -> None:
    """Add the options of what is asked of pictures."""
    parser.add_argument("--run", nargs="+", default=None, help="names of runs, such as 'shift 1'; all by default")
    parser.add_argument("--methods", nargs="+", choices=methods, default=list(methods))
    parser.add_argument("--draws", type=int, default=2, help="of captions to tune on")


def measure(rows: Rows, options: argparse.Namespace, *, player: type[Latents]) -> None:
    """Run what is missing."""
    for part, method in track(list(itertools.product(parts_of(options, RUNS), options.methods)), player.aim):
        own = Part(rows, part, options, player)
        if method == "fixed":
            for aim in options.aims:
                smallest_kept(own, aim)
        elif method == "fewer":
            for count in counts_of(rows.like(part), options.aims):
                own.get("fewer", count)
        else:
            for aim, draw in itertools.product(options.aims, range(options.draws)):
                if method == "tuned" or draw == 0:
                    own.get(method, aim, draw)


def smallest_kept(rows: Part, aim: float) -> int:
    """The smallest number of computed steps at which the default keeps what is asked for, by halving."""
    below, kept = 1, STEPS
    while kept - below > 1:
        middle = (below + kept) // 2
        if rows.player.share(rows.get("fixed", middle), aim) >= SHARE:
            kept = middle
        else:
            below = middle
    return kept


def counts_of(rows: Sequence[Row], aims: Sequence[float]) -> list[int]:
    """How many steps compute on average, untuned and tuned, for each that is asked for."""
    counts = set()
    for method, aim in itertools.product(("untuned", "tuned"), aims):
        own = [row["computed"] for row in rows if row["method"] == method and row["setting"] == aim]
        if own:
            counts.add(round(statistics.fmean(own)))
    return sorted(counts)


class Part:
    """The rows of one part, measured where they are missing."""

    def __init__(self, rows: Rows, part: Row, options: argparse.Namespace, player: type[Latents]) -> None:
        self._rows, self._part, self._options, self.player = rows, part, options, player
        self._playing: Latents | None = None

    def get(self, method: str, setting: float, draw: int = 0) -> Row:
        """The row of a method at a setting: what is asked for, or a number of steps."""
        key = {**self._part, "method": method, "setting": setting, "draw": draw}
        if not self._rows.like(key):
            self._playing = self._playing or self.player(self._part, self._options)
            self._rows.add({**key, **self._playing.play(method, setting, draw)})
        return self._rows.like(key)[0]


class Latents(Player):
    """The final latents of one pipeline by each method, held against those of its full run."""

    aim = "tolerance"
    """The parameter of `enable` that asks for something."""

    def __init__(self, part: Row, options: argparse.Namespace) -> None:
        super().__init__(part, RUNS, prompts=options.prompts, draws=options.draws, drawn=JUDGED, seed=SEED)
        self._full = self.made(self.judged)

    @classmethod
    def share(cls, row: Row, aim: float) -> float:
        """The share of the captions that keep what is asked for."""
        return within(row["errors"], aim)

    def play(self, method: str, setting: float, draw: int) -> Row:
        """How close each judged caption is, how many steps compute on average, and what tuning says."""
        if method == "fewer":
            return {"computed": setting, **self.judge(self.made(self.judged, int(setting)))}
        if method == "fixed":
            with omnireuse.enable(self.pipeline, computed_steps=int(setting), tune=False):
                return {"computed": setting, **self.judge(self.made(self.judged))}
        if method == "untuned":
            with omnireuse.enable(self.pipeline, tolerance=setting, tune=False) as handle:
                return self._one_by_one(handle)
        first, aim = self.drawn[draw][0], {self.aim: setting}
        with (
            tempfile.TemporaryDirectory() as folder,
            cache_in(folder),
            omnireuse.enable(self.pipeline, **aim) as handle,
        ):
            for place in self.drawn[draw]:
                self.made([place])
            tuning = handle.tuning
            if tuning.state == "measuring":  # shadows are due before the next picture
                self.made([first])
                tuning = handle.tuning
            follows_rule = tuning.expected is None and self.aim == "tolerance"
            found = self._one_by_one(handle) if follows_rule else self._together(handle)
        about = {"state": tuning.state, "runs": tuning.runs, "expected": tuning.expected, "text": tuning.reason}
        return found | about

    def _one_by_one(self, handle: omnireuse.Handle) -> Row:
        before = len(handle.events)
        made = torch.cat([self.made([place]) for place in self.judged])
        return {"computed": _computed(handle, before) / len(self.judged), **self.judge(made)}

    def _together(self, handle: omnireuse.Handle) -> Row:
        before = len(handle.events)
        judged = self.judge(self.made(self.judged))
        runs = len({event.run for event in handle.events[before:]})
        return {"computed": _computed(handle, before) / runs, **judged}

    def made(self, places: Sequence[int], steps: int = STEPS) -> Any:
        """The final latents of these captions as the pipeline makes them now."""
        call = {**self.case.sampling, "num_inference_steps": steps, **self.guidance}
        if isinstance(call.get("negative_prompt"), str):
            call["negative_prompt"] = [call["negative_prompt"]] * len(places)
        prompts = [self.prompts[place] for place in places]
        generators = [torch.Generator().manual_seed(SEED + place) for place in places]
        made = self.pipeline(prompts, generator=generators, output_type="latent", **call)
        latents: torch.Tensor = getattr(made, self.case.output)
        return latents.double()

    def judge(self, made: Any) -> Row:
        """How close each is to its full run."""
        axes = tuple(range(1, made.ndim))
        errors = (made - self._full).abs().sum(axes) / self._full.abs().sum(axes)
        return {"errors": [round(error, 6) for error in errors.tolist()]}


def _computed(handle: omnireuse.Handle, before: int) -> int:
    """How many steps of all runs were computed since there were so many events."""
    return len({(event.run, event.step) for event in handle.events[before:] if not event.reused})


if __name__ == "__main__":
    main()
