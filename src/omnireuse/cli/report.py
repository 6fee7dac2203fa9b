"""``omnireuse report``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnireuse.base.extras import check_extra
from omnireuse.cli.options import Quiet, Verbose

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse report out/compare/compare.json
$ omnireuse report report.json compare.json --out page.html"""


def run(
    files: Annotated[
        list[Path], typer.Argument(metavar="RESULTS.json", help="Results of omnireuse compare or of a demo.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder, or the page itself: PAGE.html (default: the folder of the first file)."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Make the page again from results that were written before.

    Several files make one page; one of them can hold pictures.
    """
    check_extra("omnireuse report", "report")
    from omnireuse.lab.report.page import rebuild

    typer.echo(f"wrote {rebuild(files, out)}")
    return 0
