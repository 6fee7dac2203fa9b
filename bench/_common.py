"""What the benchmarks share: tables of figures, the file of a record, and silence."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.table import Table


def new_table(title: str, *headings: str) -> Table:
    """A table whose first column is text and the others figures."""
    table = Table(title=title, box=None, title_justify="left", header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right", no_wrap=True)
    return table


def write_record(record: dict[str, Any], folder: Path, name: str, *, quiet: bool = False) -> None:
    """Write ``record`` to ``NAME.json`` in ``folder``, created where missing, and say so unless `quiet`.

    Its entry "run" has the day in UTC and the revision, with "+" after it where the checkout has changes of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.json"
    command = ("git", "describe", "--always", "--exclude=*", "--dirty=+")
    revision = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()
    run = {"day": f"{datetime.now(timezone.utc):%Y-%m-%d}", "revision": revision or "unknown"}
    target.write_text(json.dumps({**record, "run": run}, indent=1), encoding="utf-8")
    if not quiet:
        print(f"wrote {target}")


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
