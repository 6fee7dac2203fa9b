"""The program ``omnireuse``: its commands, the options that all of them share, and its exit statuses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import omnireuse
from omnireuse.cli import calibrate, compare, demo, engine_demo, replay, report
from omnireuse.cli.options import Quiet, Verbose
from omnireuse.cli.parsing import Command, Group, usage_error
from omnireuse.errors import OmniReuseError
from omnireuse.terminal import log_lines, print_error

__all__ = ["main"]

app = typer.Typer(
    name="omnireuse",
    cls=Group,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in (
    ("demo", demo),
    ("calibrate", calibrate),
    ("compare", compare),
    ("report", report),
    ("replay", replay),
    ("engine-demo", engine_demo),
):
    app.command(_name, cls=Command, epilog=_command.EXAMPLES)(_command.run)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"omnireuse {omnireuse.__version__}")
        raise typer.Exit


@app.callback(epilog="omnireuse COMMAND --help explains a command, with examples.")
def _common(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Reuse for diffusion pipelines and multimodal engines: calibrate, compare, and see what it gives."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        Exit status: 0 done, 1 the outputs of the engine demo differ, 2 a mistake in the arguments, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    with log_lines():
        try:
            status: int | None = app(arguments or ["--help"], prog_name="omnireuse", standalone_mode=False)
        except typer.TyperException as error:
            print_error(usage_error(error))
            return error.exit_code
        except OmniReuseError as error:
            print_error(str(error))
            return 2
        except OSError as error:
            print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            return 2
    return status or 0
