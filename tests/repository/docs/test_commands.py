"""Every command that the documentation shows exists, and takes the options that stand behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from omnireuse import cli
from reference import commands

from .commands import check, shown
from .pages import NAMES, TOP

SHOWN = [(name, line, command) for name in NAMES for line, command in shown(TOP / name)]


@pytest.fixture(autouse=True)
def at_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that holds what the commands name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TOP))
    for folder in ("MODEL", "MODEL_DIR", "FOLDER"):
        Path(folder).mkdir()
    for file in ("FILE", "RESULTS.json", "profile.json", "trace.csv", "prompts.txt"):
        Path(file).touch()


@pytest.mark.parametrize(("name", "line", "command"), SHOWN, ids=[f"{name}:{line}" for name, line, _ in SHOWN])
def test_a_shown_command_is_one(name: str, line: int, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(command, monkeypatch)


@pytest.mark.parametrize("run", [*cli.COMMANDS.values(), *commands.COMMANDS.values()])
def test_the_examples_of_the_help_are_commands(run: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    examples = sys.modules[run.__module__].EXAMPLES
    shown_there = [line.removeprefix("$ ") for line in examples.splitlines() if line.startswith("$ ")]
    assert shown_there
    for command in shown_there:
        check(command, monkeypatch)
