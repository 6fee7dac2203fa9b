"""What each rule of the untuned default is worth: PSNR to the full run with the rule, less that without it.

    python -m bench rules [--case shapes-flux …] [--rule "fewer computed steps" …] [--budgets 28:14 28:9]

Every reference model runs with each of its schedulers, with guidance and without. A rule that is worth less than 1 dB
on average is not worth its sentence.

Every row is written as soon as it is known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from bench._common import new_table
from bench._resumable import Row, Rows, parser_of, parts_of, record_of
from bench.tune import RUNS, Tuned
from omnireuse.forecasters import blend
from omnireuse.policies import spread

Change = tuple[Any, str, Any]

RULES: dict[str, tuple[Change, ...]] = {
    "a last gap that counts 2.5 times": ((spread, "END", 1.0),),
    "even in (1 − noise)^0.4": ((spread, "EXPONENT", 1.0),),
    "below 0.3 of the steps: even in (1 − noise)^0.6": ((spread, "FEW", 0.0),),
    "below 0.4 of the steps: doubt a line that missed half of the value": ((blend, "FEW", 0.0),),
    "a correction by what is left of the noise": ((blend, "DAMPING", 0.0),),
}
"""Each rule, and the constants that turn it off."""


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``rules.json``, and show a table."""
    parser = parser_of("rules", __doc__, RUNS, prompts=8)
    parser.add_argument("--rule", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--budgets", nargs="+", default=["28:14", "28:9"], help="steps:computed steps")
    show(record_of("rules", parser.parse_args(arguments), measure)["rows"], Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    for part, budget in track(list(itertools.product(parts_of(options, RUNS), options.budgets)), "rules"):
        steps, computed = map(int, budget.split(":"))
        key = part | {"steps": steps, "computed": computed}
        if missing := [name for name in ("nothing", *options.rule) if not rows.like(key | {"without": name})]:
            player = Tuned(key, prompts=options.prompts, draws=0)
            for name in missing:
                with changed(RULES.get(name, ())):
                    rows.add(key | {"without": name} | player.play("untuned", 0))


KEY = ("case", "run", "guided", "steps", "computed")


@contextmanager
def changed(changes: tuple[Change, ...]) -> Iterator[None]:
    """Constants have other values, and no schedule is remembered."""
    schedule: Callable[[], None] = spread._schedule.cache_clear
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for module, name, value in changes:
            setattr(module, name, value)
        schedule()
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        schedule()


def show(rows: list[Row], console: Console) -> None:
    """For each rule and budget the mean, the lowest and the highest gain over all runs."""
    by_key: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        by_key.setdefault(tuple(row[name] for name in KEY), {})[row["without"]] = statistics.fmean(row["each"])
    budgets = sorted({key[3:] for key in by_key}, reverse=True)
    headings = [f"{computed} of {steps}" for steps, computed in budgets]
    table = new_table("dB that a rule adds: mean (lowest, highest of all runs)", "rule", *headings, "guided", "all")
    for rule in RULES:
        gains = {key: each["nothing"] - each[rule] for key, each in by_key.items() if rule in each}
        chosen = [[gain for key, gain in gains.items() if key[3:] == budget] for budget in budgets]
        chosen += [[gain for key, gain in gains.items() if key[2]], list(gains.values())]
        table.add_row(rule, *(f"{np.mean(each):+.1f} ({min(each):+.1f}, {max(each):+.1f})" for each in chosen if each))
    console.print(table)


if __name__ == "__main__":
    main()
