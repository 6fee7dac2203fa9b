"""What is not installed is said before the work begins."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from omnireuse import cli
from omnireuse.base.extras import check_extra
from omnireuse.errors import MissingExtraError
from omnireuse_lab.compare.methods import chosen_methods
from reference import commands


def main(arguments: list[str]) -> int:
    return (commands if arguments[0] in commands.COMMANDS else cli).main(arguments)


@pytest.mark.parametrize(
    ("arguments", "module", "message"),
    [
        (["demo"], "omnireuse_lab", "python -m reference demo needs an optional dependency"),
    ],
)
def test_a_command_names_the_extra_before_the_work(
    arguments: list[str],
    module: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "omnireuse[lab]" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["compare"], "lab"),
        (["compare", "--help"], "lab"),
        (["demo", "folder", "--steps", "x", "-q"], "lab"),
        (["replay", "trace.csv", "--capacity", "x"], "engines"),
        (["engine-demo"], "engines"),
    ],
)
def test_a_command_of_another_distribution_says_how_to_install_it(
    arguments: list[str], extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("omnireuse.base.registry.entry_points", lambda **_: ())
    assert cli.main(arguments) == 2
    said = f"needs an optional dependency; install it: pip install 'omnireuse[{extra}]'"
    assert capsys.readouterr() == ("", f"error: omnireuse {arguments[0]} {said}\n")
    assert cli.main(["--help"]) == 0
    assert f" {arguments[0]} " in capsys.readouterr().out


def test_a_command_that_cannot_be_loaded_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = EntryPoint("publish", "no_such_package:run", "omnireuse.commands")
    monkeypatch.setattr("omnireuse.base.registry.entry_points", lambda **_: (broken,))
    assert cli.main(["publish", "--now"]) == 2
    assert "'publish' of the entry points 'omnireuse.commands' cannot be loaded" in capsys.readouterr().err
    assert cli.main(["cache", "--help"]) == 0


def test_cache_dit_is_left_out_where_it_is_not_installed_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cache_dit", None)
    methods = chosen_methods(only=["peer"])
    assert methods
    assert not [method.name for method in methods if "cache-dit" in method.name]
    assert "cache-dit is left out, it is not installed" in caplog.text
    with pytest.raises(MissingExtraError, match=r"omnireuse\[cache-dit\]"):
        chosen_methods(only=["peer", "scm"])
    with pytest.raises(MissingExtraError, match="this needs an optional dependency"):
        check_extra("this", "cache-dit")
