"""``omnireuse calibrate`` beside the search: its file, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from omnireuse import Profile
from omnireuse.cli import main
from tests.unit.calibration.test_profile_file import PLAN, PROFILE


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\n", "utf-8")
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
    out.write_text("precious", "utf-8")
    assert main(command(out)) == 2
    assert "--out must be new, got a file; give another name" in capsys.readouterr().err
    assert out.read_text("utf-8") == "precious"
    assert seen == [], "it is refused before the work begins"
    assert main(command(out, "--force")) == 0
    assert Profile.load(out) == PROFILE
