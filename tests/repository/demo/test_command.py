"""The command from end to end on an untrained reference pipeline: real generation, real caches, real files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from reference.commands import main
from reference.demo import command
from reference.demo.record import read_demo

pytestmark = pytest.mark.integration


def test_a_demo_writes_its_record_and_page(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "CACHES", command.CACHES[:1])
    out = tmp_path / "out"
    arguments = ["--model", str(model), "--out", str(out), "--steps", "20", "--prompts", "2", "--guidance", "1"]
    assert main(["demo", *arguments]) == 0
    text = capsys.readouterr().out
    made = read_demo(out / "report.json")
    assert made.comparison.complete
    assert len(made.case.prompts) == 2
    assert made.case.pipeline == "untrained"
    for cache in command.CACHES:
        assert cache.name in text
    best = made.case.points[0]
    assert best.computed_steps is not None
    assert best.psnr is not None
    assert best.computed_steps < 20
    assert best.psnr.mean < 100, "something must have been reused"
    assert {each.step for each in made.samples[0][0].decisions} == set(range(20))
    assert (best.kept_bytes or 0) > 0
    plain = [place for place, point in enumerate(made.case.points) if point.family == "baseline"]
    assert all(not made.samples[place][0].decisions for place in plain)

    assert "Every run of this prompt" in (out / "report.html").read_text("utf-8")
    for name in ("report.json", "report.html"):
        assert f"wrote {out / name}" in text

    # Another demo in the same folder removes what this one has written, and nothing else.
    of_the_second_prompt = [row[1].image for row in (made.full, *made.samples)]
    assert all((out / name).is_file() for name in of_the_second_prompt)
    others = (out / "notes.txt", out / "images" / "mine.png")
    for path in others:
        path.write_text("keep me", "utf-8")
    arguments[arguments.index("--prompts") + 1] = "1"
    assert main(["demo", *arguments]) == 0
    assert len(read_demo(out / "report.json").case.prompts) == 1
    assert not [name for name in of_the_second_prompt if (out / name).exists()]
    assert all(path.read_text("utf-8") == "keep me" for path in others)


def test_results_of_something_else_are_not_overwritten(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "load_quietly", lambda *_: pytest.fail("work began"))
    (tmp_path / "report.json").write_text('{"mine": 1}', "utf-8")
    assert main(["demo", "--model", str(model), "--out", str(tmp_path)]) == 2
    assert "delete it, or name another folder" in capsys.readouterr().err
    assert (tmp_path / "report.json").read_text("utf-8") == '{"mine": 1}'


def test_the_extra_is_named_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "omnireuse_lab", None)
    assert main(["demo"]) == 2
    error = capsys.readouterr().err
    assert "python -m reference demo needs an optional dependency" in error
    assert "omnireuse[lab]" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


def test_a_misspelt_option_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    error = fails(capsys, "--guidence=3")
    assert "no such option: --guidence (Possible options: --guidance); see python -m reference demo --help" in error


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
    assert message in fails(capsys, option, value, "--model", "does-not-exist")


def test_missing_weights_are_an_error_that_says_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    err = fails(capsys, "--model", str(tmp_path), "--out", str(tmp_path / "out"))
    assert "a directory with a model_index.json" in err
    assert "models/faces of the repository" in err
    assert not (tmp_path / "out").exists()


def test_interrupt_before_anything_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reference.demo.command.FACES", SimpleNamespace(find=interrupt))
    assert main(["demo"]) == 130
    assert "nothing was kept" in capsys.readouterr().err
