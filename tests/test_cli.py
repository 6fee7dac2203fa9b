from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import omnireuse
from omnireuse.cli import main


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"omnireuse {omnireuse.__version__}\n"


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "omnireuse", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"omnireuse {omnireuse.__version__}\n"


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "demo" in out
    assert "report" in out


def test_a_misspelt_command_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown command 'dmeo'; did you mean 'demo'?" in fails(capsys, "dmeo")


def test_a_misspelt_option_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown option '--guidence'; did you mean '--guidance'?" in fails(capsys, "demo", "--guidence=3")
    assert "unknown option '--fit-promts'; did you mean '--fit-prompts'?" in fails(
        capsys, "calibrate", "x", "--prompts", "y", "--fit-promts=3"
    )
    assert "unknown option '--versoin'; did you mean '--version'?" in fails(capsys, "--versoin")


def test_a_stray_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "got 'fast'" in fails(capsys, "demo", "fast")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--steps", "3", "steps must be a whole number of at least 4, got 3"),
        ("--prompts", "0", "prompts must be a whole number of at least 1, got 0"),
        ("--seed", "-1", "seed must be a whole number of at least 0, got -1"),
        ("--guidance", "0.5", "guidance must be a finite number of at least 1, got 0.5"),
        ("--guidance", "nan", "guidance must be a finite number of at least 1, got nan"),
    ],
)
def test_a_value_out_of_range_is_refused_before_anything_runs(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in fails(capsys, "demo", option, value, "--model", "does-not-exist")


def test_missing_weights_are_an_error_that_says_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = fails(capsys, "demo", "--model", str(tmp_path), "--out", str(tmp_path / "out"))
    assert "a directory with a model_index.json" in err
    assert "models/shapes-flux of the repository" in err
    assert not (tmp_path / "out").exists()


def test_report_of_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in fails(capsys, "report", str(tmp_path / "results.json"))


def test_interrupt_before_anything_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omnireuse.demo.command.IMAGES", SimpleNamespace(find=interrupt))
    assert main(["demo"]) == 130
    assert "nothing was kept" in capsys.readouterr().err
