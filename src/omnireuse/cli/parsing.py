"""How the arguments of commands are read, beyond what typer does: suggestions, several values, numbers, JSON."""

from __future__ import annotations

import json
from typing import Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from omnireuse.errors import UnknownNameError
from omnireuse.terminal import notes

__all__ = ["INTERRUPTED", "Command", "Group", "json_object", "names", "usage_error", "whole_numbers"]

INTERRUPTED = 130
"""Exit status of a program that Ctrl-C ended, as shells have it."""


class Command(TyperCommand):
    """A command. An option that may be repeated takes several values at once as well: ``--steps 28 50``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does; a misspelt option gets the nearest one suggested."""
        repeated = {option for each in self.params if getattr(each, "multiple", False) for option in each.opts}
        try:
            return super().parse_args(ctx, _repeat_options(args, repeated))
        except typer.TyperException as error:
            raise _explained(error, self, ctx) from error.__cause__


class Group(TyperGroup):
    """The commands. A misspelt one gets the nearest one suggested; Ctrl-C becomes an exit status."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does; a misspelt option gets the nearest one suggested."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            raise _explained(error, self, ctx) from error.__cause__

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant.

        Raises:
            UnknownNameError: there is none of that name.
        """
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise UnknownNameError("command", args[0], self.commands)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt says what was kept, where the command knows."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            notes.print(str(interrupt) or "interrupted; nothing was kept", highlight=False, soft_wrap=True)
            return INTERRUPTED


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


def _explained(error: Any, command: TyperCommand | TyperGroup, ctx: Any) -> Exception:
    """The error, with the command that it belongs to; an unknown option with the nearest one."""
    if hasattr(error, "possibilities"):
        known = (name for each in command.get_params(ctx) for name in each.opts if name.startswith("--"))
        return UnknownNameError("option", error.option_name, known)
    error.ctx = getattr(error, "ctx", None) or ctx
    return cast(Exception, error)


def usage_error(error: typer.TyperException) -> str:
    """What is wrong with the arguments, and where help is, as one line."""
    words = " ".join(error.format_message().split()).rstrip(".")
    reasons = getattr(error.__cause__, "errors", None)
    if reasons is not None:  # pydantic, which typer checks values with, knows what was given
        what, given = reasons()[0]["msg"], reasons()[0]["input"]
        words = words.replace(what, f"{what.partition(',')[0].replace('Input should', 'must')}, got {given!r}")
    ctx = getattr(error, "ctx", None)
    where = "omnireuse" if ctx is None else ctx.command_path
    return f"{words[:1].lower()}{words[1:]}; see {where} --help"


def json_object(text: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        BadParameter: anything else.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"must be JSON, got {text!r}: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"must be a JSON object, got {text!r}")
    return value


def names(text: str) -> tuple[str, ...]:
    """Names with commas between."""
    return tuple(text.split(","))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between.

    Raises:
        BadParameter: anything else.
    """
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"must be whole numbers with commas between, got {text!r}") from None
