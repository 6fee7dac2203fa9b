"""A program of several commands: options with several values, errors of one line, and exit statuses."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

import omnireuse
from omnireuse.base.terminal import log_lines, notes, print_error
from omnireuse.cli.options import Quiet, Verbose
from omnireuse.errors import OmniReuseError

__all__ = ["INTERRUPTED", "Command", "program"]

INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended, as shells have it."""


class Command(TyperCommand):
    """A command. An option that may be repeated takes several values at once as well: ``--steps 28 50``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, with each value behind an option of its own."""
        repeated = {option for each in self.params if getattr(each, "multiple", False) for option in each.opts}
        try:
            return super().parse_args(ctx, _repeat_options(args, repeated))
        except typer.TyperException as error:
            cast(Any, error).ctx = getattr(error, "ctx", None) or ctx  # its help is that of the command
            raise


class Group(TyperGroup):
    """The commands. Ctrl-C becomes an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt says what was kept, if the command knows."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            notes.print(str(interrupt) or "interrupted; nothing was kept", highlight=False, soft_wrap=True)
            return INTERRUPTED


def program(
    name: str,
    summary: str,
    commands: Mapping[str, Callable[..., int]],
    missing: Mapping[str, tuple[str, OmniReuseError]] | None = None,
) -> Callable[[Sequence[str] | None], int]:
    """The main function of a program.

    Args:
        commands: by name the function of each, as typer takes it. `EXAMPLES` of its module ends its help.
        missing: by name what the help says of each command that cannot run, and the error that it ends with, whatever
            its arguments.
    """
    app = typer.Typer(
        name=name,
        cls=Group,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command, run in commands.items():
        app.command(command, cls=Command, epilog=getattr(sys.modules[run.__module__], "EXAMPLES", None))(run)
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    for command, (words, error) in (missing or {}).items():
        app.command(command, help=words, add_help_option=False, context_settings=anything)(_raising(error))

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
        if isinstance(sys.stdout, io.TextIOWrapper):  # in a file of an encoding without "−", as on Windows
            sys.stdout.reconfigure(errors="replace")
        with log_lines():
            try:
                status: int | None = app(arguments or ["--help"], prog_name=name, standalone_mode=False)
            except typer.TyperException as error:
                print_error(_usage_error(error))
                return error.exit_code
            except OmniReuseError as error:
                print_error(str(error))
                return 2
            except SystemExit as end:
                # rich exits so when nobody reads the output any more, as in `omnireuse --help | head`.
                if isinstance(end.__context__, BrokenPipeError):
                    return 0
                raise
            except OSError as error:
                print_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
                return 2
        return status or 0

    return main


def _raising(error: OmniReuseError) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"omnireuse {omnireuse.__version__}")
        raise typer.Exit


def _repeat_options(args: list[str], repeated: set[str]) -> list[str]:
    """``--steps 28 50`` as ``--steps 28 --steps 50``."""
    spread: list[str] = []
    option, values = "", 0
    for each in args:
        if each.startswith("-") and not (option and values == 0):
            option, values = (each if each in repeated else ""), 0
        elif option:
            values += 1
            if values > 1:
                spread.append(option)
        spread.append(each)
    return spread


def _usage_error(error: typer.TyperException) -> str:
    """The mistake in the arguments, and the way to help, as one line."""
    words = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    reasons = getattr(error.__cause__, "errors", None)
    if reasons is not None:  # of pydantic, which typer checks values with
        what, given = reasons()[0]["msg"], reasons()[0]["input"]
        words = words.replace(what, f"{what.partition(',')[0].replace('Input should', 'must')}, got {given!r}")
    ctx = getattr(error, "ctx", None)
    where = "omnireuse" if ctx is None else ctx.command_path
    return f"{words[:1].lower()}{words[1:]}; see {where} --help"
