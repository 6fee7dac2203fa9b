"""Benchmarks that go on where they were stopped: options, the rows that are known, and a pipeline to play."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch

from bench._common import no_warnings, write_record
from omnireuse_lab.record import environment
from reference.case import CASES

Row = dict[str, Any]
Schedulers = Mapping[str, Mapping[str, Callable[[Any], Any]]]
"""Case -> name of a run -> from the configuration of the case's scheduler to that of the run."""


def parser_of(
    name: str, doc: str | None, cases: Iterable[str], *, prompts: int, guidance: bool = True
) -> argparse.ArgumentParser:
    """A parser with the options that these benchmarks share.

    Args:
        guidance: whether runs with and without it can be asked for.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=(doc or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=list(cases), default=list(cases))
    if guidance:
        both = ("guided", "unguided")
        parser.add_argument("--guidance", nargs="+", choices=both, default=list(both))
    parser.add_argument("--prompts", type=int, default=prompts, help="held-out captions")
    parser.add_argument("--show", action="store_true", help="only show the record")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    return parser


def record_of(
    name: str, options: argparse.Namespace, measure: Callable[[Rows, argparse.Namespace], None], **about: Any
) -> Row:
    """The record of a benchmark, after `measure` has added what is missing, unless it is only to be shown."""
    rows = Rows(name, options.out, **about)
    if not options.show:
        with no_warnings(), torch.no_grad():
            measure(rows, options)
    return rows.record


class Rows:
    """The rows of ``NAME.json``. Each is written as soon as it is known; a run that was stopped goes on from there."""

    def __init__(self, name: str, folder: Path, **about: Any) -> None:
        self._name, self._folder = name, folder
        kept = folder / f"{name}.json"
        known: Row = json.loads(kept.read_text()) if kept.is_file() else {"rows": []}
        self.record = known | {"command": f"python -m bench {name}", "environment": environment(), **about}

    def like(self, key: Row) -> list[Row]:
        """The rows that have these entries."""
        return [row for row in self.record["rows"] if all(row[name] == value for name, value in key.items())]

    def add(self, *rows: Row) -> None:
        """Keep further rows."""
        self.record["rows"] += rows
        write_record(self.record, self._folder, self._name, quiet=True)


def parts_of(options: argparse.Namespace, runs: Schedulers) -> list[Row]:
    """Case, run and guidance of each part that was asked for."""
    asked = getattr(options, "run", None)
    return [
        {"case": case, "run": run, "guided": guidance == "guided"}
        for case in options.case
        for run, guidance in itertools.product(asked or runs[case], options.guidance)
        if run in runs[case]
    ]


class Player:
    """One pipeline in runs of one kind, with captions to judge by, and for each draw some to tune on.

    Args:
        part: the case, its run and guidance.
        runs: the schedulers of all cases.
        prompts: captions to judge by.
        drawn: further captions of each draw.
        prepare: changes the denoiser once it is loaded.

    Attributes:
        pipelines: those that are loaded, with the configurations of their schedulers.
    """

    pipelines: ClassVar[dict[str, tuple[Any, Any]]] = {}

    def __init__(
        self,
        part: Row,
        runs: Schedulers,
        *,
        prompts: int,
        draws: int,
        drawn: int,
        seed: int,
        prepare: Callable[[torch.nn.Module], None] = lambda _: None,
    ) -> None:
        self.case = CASES[part["case"]]
        if self.case.name not in self.pipelines:
            pipeline = self.case.load()
            pipeline.set_progress_bar_config(disable=True)
            prepare(getattr(pipeline, "transformer", None))  # type: ignore[arg-type]  # a U-Net is not prepared
            self.pipelines[self.case.name] = pipeline, pipeline.scheduler.config
        self.pipeline, config = self.pipelines[self.case.name]
        self.pipeline.scheduler = runs[part["case"]][part["run"]](config)
        self.guidance = {} if part["guided"] else {self.case.guidance: 1.0}
        scenes = self.case.held_out(prompts + drawn * draws, seed=seed)
        self.prompts = [self.case.caption(scene) for scene in scenes]
        self.judged = range(prompts)
        self.drawn = [range(prompts + drawn * draw, prompts + drawn * (draw + 1)) for draw in range(draws)]
