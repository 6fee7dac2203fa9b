"""What the benchmarks share: options, rows that are kept as they are known, tables, and silence.

It needs neither the laboratory nor torch until rows are measured: the environments of engines lack one or both.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.table import Table

Row = dict[str, Any]


def new_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser with the option of every benchmark: where its record goes."""
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=(doc or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    return parser


def parser_of(
    name: str, doc: str | None, cases: Iterable[str], *, prompts: int, guidance: bool = True
) -> argparse.ArgumentParser:
    """A parser with the options of benchmarks on several pipelines.

    Args:
        guidance: whether runs with and without it can be asked for.
    """
    parser = new_parser(name, doc)
    parser.add_argument("--case", nargs="+", choices=list(cases), default=list(cases))
    if guidance:
        both = ("guided", "unguided")
        parser.add_argument("--guidance", nargs="+", choices=both, default=list(both))
    parser.add_argument("--prompts", type=int, default=prompts, help="held-out captions")
    parser.add_argument("--show", action="store_true", help="only show the record")
    return parser


class Rows:
    """The rows of ``NAME.json``. Each is written as soon as it is known; a run that was stopped goes on from there.

    Attributes:
        record: all of the file; the rows are its entry "rows".
    """

    def __init__(self, name: str, folder: Path, **about: Any) -> None:
        from omnireuse_lab.record import environment

        self._name, self._folder = name, folder
        kept = folder / f"{name}.json"
        known: Row = json.loads(kept.read_text("utf-8")) if kept.is_file() else {"rows": []}
        self.record = known | {"command": f"python -m bench {name}", "environment": environment(), **about}

    def like(self, key: Row) -> list[Row]:
        """The rows that have these entries."""
        return [row for row in self.record["rows"] if all(row.get(name) == value for name, value in key.items())]

    def add(self, *rows: Row) -> None:
        """Keep further rows."""
        self.record["rows"] += rows
        write_record(self.record, self._folder, self._name, quiet=True)


def record_of(
    name: str, options: argparse.Namespace, measure: Callable[[Rows, argparse.Namespace], None], **about: Any
) -> Row:
    """The record of a benchmark, after `measure` has added what is missing, unless it is only to be shown."""
    import torch

    rows = Rows(name, options.out, **about)
    if not getattr(options, "show", False):
        with no_warnings(), torch.no_grad():
            measure(rows, options)
    return rows.record


def write_record(record: Row, folder: Path, name: str, *, quiet: bool = False) -> None:
    """Write ``record`` to ``NAME.json`` in ``folder``, created where missing, and say so unless `quiet`.

    Its entry "run" has the day in UTC and the revision, with "+" after it where the checkout has changes of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.json"
    command = ("git", "describe", "--always", "--exclude=*", "--dirty=+")
    revision = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, encoding="utf-8").stdout.strip()
    run = {"day": f"{datetime.now(timezone.utc):%Y-%m-%d}", "revision": revision or "unknown"}
    target.write_text(json.dumps({**record, "run": run}, indent=1), encoding="utf-8")
    if not quiet:
        print(f"wrote {target}")


def new_table(title: str, *headings: str) -> Table:
    """A table whose first column is text and the others figures."""
    table = Table(title=title, box=None, title_justify="left", header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right", no_wrap=True)
    return table


def in_words(row: Row) -> str:
    """The part that a row belongs to: its case, run and guidance."""
    return f"{row['case']}, {row['run']}, {'guided' if row['guided'] else 'unguided'}"


@contextmanager
def no_warnings() -> Iterator[None]:
    """Without the library's warnings: what it warns of is what is measured."""
    library = logging.getLogger("omnireuse")
    level = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(level)
