from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import omnireuse
from omnireuse.base.terminal import notes
from omnireuse.cli import main
from omnireuse.cli.program import program


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"omnireuse {omnireuse.__version__}\n"


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omnireuse", "--version"], capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout == f"omnireuse {omnireuse.__version__}\n"


def test_a_misspelt_command_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such command 'comapre'. Did you mean 'compare'?; see omnireuse --help" in fails(capsys, "comapre")


def test_a_misspelt_option_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    error = fails(capsys, "calibrate", "x", "--prompts", "y", "--fit-promts=3")
    assert "no such option: --fit-promts (Possible options: --fit-prompts" in error
    assert "no such option: -x; see omnireuse calibrate --help" in fails(capsys, "calibrate", "-x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "calibrate --steps many",
            "invalid value for '--steps': must be a valid integer, got 'many'; see omnireuse calibrate",
        ),
        ("calibrate --steps", "option '--steps' requires an argument; see omnireuse calibrate --help"),
        ("calibrate folder", "missing option '--prompts'; see omnireuse calibrate --help"),
        ("calibrate folder --prompts x --call [1]", "invalid value for '--call': must be a JSON object, got '[1]'"),
        ("-q", "missing command; see omnireuse --help"),
    ],
)
def test_mistakes_take_one_line_and_say_where_help_is(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = fails(capsys, *arguments.split())
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from omnireuse.cli import main; main(['--help']); main(['calibrate', '--help']);"
        "print(sorted({'torch', 'diffusers', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "shown", "hidden"),
    [
        (["cache", "list"], {"warning: careful", "a notice"}, {"details"}),
        (["cache", "list", "-v"], {"warning: careful", "a notice", "info: details"}, set()),
        (["--verbose", "cache", "list"], {"warning: careful", "a notice", "info: details"}, set()),
        (["cache", "list", "--quiet"], {"error: broken"}, {"careful", "a notice", "details"}),
        (["-q", "cache", "list"], {"error: broken"}, {"careful", "a notice", "details"}),
    ],
)
def test_quiet_and_verbose(
    arguments: list[str],
    shown: set[str],
    hidden: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def files(_: object) -> list[Path]:
        logger = logging.getLogger("omnireuse")
        logger.info("details")
        logger.warning("careful")
        logger.error("broken")
        notes.print("a notice")
        return []

    monkeypatch.setattr("omnireuse.tuning.store.Store.files", files)
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("0 files in "), "results are shown always, on standard output"
    assert {words for words in shown | hidden if words in err} == shown
    # What one command was told does not reach the next.
    assert main(["cache", "list"]) == 0
    err = capsys.readouterr().err
    assert "careful" in err
    assert "details" not in err


def test_results_go_to_a_file_of_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, "cp1252"))
    assert program("omnireuse", "", {"say": lambda: typer.echo("36.5 dB −3 dB")})(["say"]) == 0
    sys.stdout.flush()
    assert held.getvalue() == b"36.5 dB ?3 dB" + os.linesep.encode()


def test_shells_complete_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(words: str) -> list[str]:
        asked = {"_OMNIREUSE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-m", "omnireuse"]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.split()

    assert completed("omnireuse cal") == ["calibrate"]
    assert completed("omnireuse calibrate --fi") == ["--fit-prompts"]
    assert set(completed("omnireuse --")) >= {"--version", "--install-completion", "--show-completion"}


def test_a_file_that_cannot_be_used_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def files(_: object) -> None:
        raise PermissionError(13, "Permission denied", "plans")

    monkeypatch.setattr("omnireuse.tuning.store.Store.files", files)
    assert fails(capsys, "cache", "list") == "error: plans: Permission denied\n"
