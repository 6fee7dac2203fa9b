"""The commands that the pages show, and whether each is one: it is parsed in full and stopped before it runs."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import runpy
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest
import tomllib
import typer

from .pages import TOP, blocks

COMMANDS = ("omnireuse ", "python ", "make ", "pip ", "head ", "scripts/", ".ci/")
#: Placeholders of values that only some words can take: what stands there cannot be parsed.
CHOICES = {"NAME", "PART", "COMMAND"}


def shown(page: Path) -> list[tuple[int, str]]:
    """Line and text of each command of a page, in shell blocks and in inline code."""
    found = []
    for start, language, text in blocks(page):
        if language == "sh":
            lines = re.sub(r"\\\n *", "", text).splitlines()
            found += [(start + 1 + i, line) for i, line in enumerate(lines) if line]
    text = re.sub(
        r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), page.read_text("utf-8"), flags=re.M | re.S
    )
    for span in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        command = " ".join(span[1].split())
        if command.startswith(COMMANDS):
            found.append((text.count("\n", 0, span.start()) + 1, command))
    return found


class ParsedError(Exception):
    """Raised in place of what the command would do."""


_parse_args = argparse.ArgumentParser.parse_args


def _parse_and_raise(*given: Any, **named: Any) -> NoReturn:
    _parse_args(*given, **named)
    raise ParsedError


def _raise_parsed(command: typer.core.TyperCommand, context: typer.Context) -> NoReturn:
    raise ParsedError


def check(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command as its program does; an error where the program would refuse it."""
    program, *arguments = shlex.split(command, comments=True)
    if program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text("utf-8"), re.MULTILINE))
        variables = set(re.findall(r"\$\((\w+)\)", (TOP / "Makefile").read_text("utf-8")))
        for argument in arguments:
            name, is_variable, _ = argument.partition("=")
            assert name in (variables if is_variable else targets), f"{name} is not in the Makefile"
    elif program == "pip":
        _check_pip(arguments)
    elif program == "head":
        assert (TOP / arguments[2]).is_file(), f"{arguments[2]} is not in the repository"
    elif program == "omnireuse":
        _parse("omnireuse", arguments, monkeypatch)
    elif program == "python" and arguments[0] == "-m":
        _parse(arguments[1], arguments[2:], monkeypatch)
    else:
        file = arguments[0] if program == "python" else program
        assert (TOP / file).is_file(), f"{file} is not in the repository"


def _check_pip(arguments: list[str]) -> None:
    """`pip install` of the clone, or of extras that exist; the project is on no index, so its bare name is not one."""
    assert arguments[0] == "install", arguments
    extras = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for argument in arguments[1:]:
        target = re.fullmatch(r"(\S+?)(?:\[([\w,-]+)\])?", argument)
        assert target, argument
        known = {".", "./lab", "./engines", "-e"}
        assert target[1] in known, f"pip install {argument}: the project is on no index; install the clone, '.'"
        assert set((target[2] or "").split(",")) <= {*extras, ""}, f"{argument}: extras are {sorted(extras)}"


def _parse(module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = arguments
    first = arguments[0] if arguments else ""
    if first in CHOICES:
        return
    if module == "omnireuse" and first.startswith("-"):  # acts while it is parsed, so it is looked up in the help
        asked = ["--help"]
    elif CHOICES.intersection(arguments) or len(arguments) == (module in {"omnireuse", "bench", "reference"}):
        asked = [first, "--help"]
    said = io.StringIO()
    with monkeypatch.context() as patch, warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.filterwarnings("ignore", "'.*' found in sys.modules")  # runpy, of a module that a test imported before
        patch.setattr(argparse.ArgumentParser, "parse_args", _parse_and_raise)
        patch.setattr(typer.core.TyperCommand, "invoke", _raise_parsed)
        patch.setattr(sys, "argv", [module, *asked])
        with pytest.raises((ParsedError, SystemExit)) as end:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    refused = isinstance(end.value, SystemExit) and end.value.code != 0
    assert not refused, f"{module} {shlex.join(asked)} is refused"
    if asked == ["--help"]:
        assert first in said.getvalue().split(), f"{module} has no option {first}"
