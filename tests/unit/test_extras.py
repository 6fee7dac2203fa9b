"""What is not installed is said before the work begins."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from omnireuse import cli


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
