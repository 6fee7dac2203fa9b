"""``omnireuse report``: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnireuse.cli.options import Quiet, Verbose
from omnireuse.extras import check_extra

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """Examples:
$ omnireuse report out/demo/results.json
$ omnireuse report results.json compare.json --out page.html"""


def run(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS.json", help="Results of a demo or of omnireuse compare."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder, or the page itself: PAGE.html (default: the folder of the first file)."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> int:
    """Make the page and the pictures again from results that were written before.

    Takes the results of a demo, those of a comparison, or one file of each.
    """
    check_extra("omnireuse report", "report")
    from omnireuse.evaluation.report.files import rebuild

    for path in rebuild(files, out):
        typer.echo(f"wrote {path}")
    return 0
