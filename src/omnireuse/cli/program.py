"""A program of several commands: the options that all of them share, and its exit statuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Annotated

import typer

import omnireuse
from omnireuse.cli.options import Quiet, Verbose
from omnireuse.cli.parsing import Command, Group, usage_error
from omnireuse.errors import OmniReuseError
from omnireuse.terminal import log_lines, print_error

__all__ = ["program"]


def program(name: str, summary: str, commands: Mapping[str, ModuleType]) -> Callable[[Sequence[str] | None], int]:
    """The main function of a program.

    Args:
        name: as it is called in a shell.
        summary: one sentence for its help.
        commands: by name the module of each, which has `run` and `EXAMPLES`.
    """
    app = typer.Typer(
        name=name,
        cls=Group,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command, module in commands.items():
        app.command(command, cls=Command, epilog=module.EXAMPLES)(module.run)

    @app.callback(help=summary, epilog=f"{name} COMMAND --help explains a command, with examples.")
    def common(
        version: Annotated[
            bool, typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True)
        ] = False,
        quiet: Quiet = False,
        verbose: Verbose = False,
    ) -> None:
        pass

    def main(argv: Sequence[str] | None = None) -> int:
        arguments = list(sys.argv[1:] if argv is None else argv)
        with log_lines():
            try:
                status: int | None = app(arguments or ["--help"], prog_name=name, standalone_mode=False)
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

    return main


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"omnireuse {omnireuse.__version__}")
        raise typer.Exit
