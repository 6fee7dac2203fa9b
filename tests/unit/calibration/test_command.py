"""``omnireuse calibrate`` beside the search: its file, and its table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from omnireuse import Profile
from omnireuse.cli import main
from omnireuse.cli.calibrate import profile_table
from tests.unit.calibration.test_profile_file import PLAN, PROFILE


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\n")
    return tmp_path / "profile.json"


def command(out: Path, *more: str) -> list[str]:
    return ["calibrate", "owner/name", "--prompts", str(out.with_name("prompts.txt")), "--out", str(out), *more]


def search(monkeypatch: pytest.MonkeyPatch, found: Profile) -> list[str]:
    """A search that comes to this; the pipelines that were searched for."""
    seen: list[str] = []

    def calibrate(model: str, *_: Any, **__: Any) -> Profile:
        seen.append(model)
        return found

    monkeypatch.setattr("omnireuse.calibration.calibrate.calibrate", calibrate)
    return seen


def test_an_interrupt_writes_what_was_found(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search(monkeypatch, replace(PROFILE, complete=False))
    assert main(command(out)) == 130
    assert out.is_file()
    assert "interrupted; what was found so far, 2 plans, is in" in capsys.readouterr().out


@pytest.mark.parametrize(("held_out", "name"), [((30.0,) * 5, "quality"), ((30.0,) * 4, "speedup"), ((), "speedup")])
def test_the_call_to_copy_is_one_that_the_profile_grants(
    held_out: tuple[float, ...],
    name: str,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    search(monkeypatch, replace(PROFILE, plans={3: replace(PLAN, held_out=held_out)}))
    assert main(command(out)) == 0
    assert f"profile={str(out)!r}, {name}=…)" in capsys.readouterr().out


def test_a_profile_that_is_there_is_not_written_over_unless_forced(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = search(monkeypatch, PROFILE)
    out.write_text("precious")
    assert main(command(out)) == 2
    assert "--out must be new, got a file that is there already" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert seen == [], "it is refused before the work begins"
    assert main(command(out, "--force")) == 0
    assert Profile.load(out) == PROFILE


def test_the_table_is_whole_at_eighty_columns() -> None:
    steps = (*range(30), 39, 49)
    plans = {
        32: replace(PLAN, steps=steps, psnr=100.0, held_out=(100.0,) * 5),
        3: replace(PLAN, forecaster="polynomial", held_out=()),
    }
    made = replace(
        PROFILE, num_inference_steps=50, coordinates=tuple(1 - i / 50 for i in range(50)), measured=None, plans=plans
    )
    target = io.StringIO()
    Console(file=target, width=80).print(profile_table(made))
    text = target.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    words = text.split()
    for word in ("computed", "reach", "forecaster", "polynomial", "16.67×", "100.0", *map(str, steps)):
        assert word in words
