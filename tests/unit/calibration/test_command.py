"""``omnireuse calibrate`` beside the search: its journal, and its table."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from omnireuse import Profile
from omnireuse.calibration.command import profile_table
from omnireuse.cli import main
from omnireuse.errors import StateError
from tests.unit.calibration.test_profile_file import PLAN, PROFILE

JOURNAL = "SQLite format 3\0"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\n")
    return tmp_path / "profile.json"


@pytest.fixture
def journal(out: Path) -> Path:
    return out.with_name("profile.json.journal")


def command(out: Path, *more: str) -> list[str]:
    return ["calibrate", "owner/name", "--prompts", str(out.with_name("prompts.txt")), "--out", str(out), *more]


def search(monkeypatch: pytest.MonkeyPatch, found: Profile | BaseException) -> list[str]:
    """A search that writes its journal and comes to this; the journals that it finds."""
    seen: list[str] = []

    def calibrate(*_: Any, journal: Path, **__: Any) -> Profile:
        seen.append(journal.read_text() if journal.exists() else "")
        journal.write_text(JOURNAL)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr("omnireuse.calibration.command.calibrate", calibrate)
    return seen


def test_the_journal_of_a_finished_search_is_removed(
    out: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.write_text(JOURNAL + "earlier")
    seen = search(monkeypatch, PROFILE)
    assert main(command(out)) == 0
    assert seen == [JOURNAL + "earlier"]
    assert out.is_file()
    assert not journal.exists()
    assert f"going on with the search in {journal}; --fresh begins anew" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "status", "more"),
    [
        (replace(PROFILE, complete=False), 130, ()),
        (KeyboardInterrupt(), 130, ()),
        (PROFILE, 0, ("--seconds", "0")),
        (StateError("a full run is not finite"), 2, ()),
    ],
)
def test_the_journal_of_a_search_that_is_not_finished_is_kept_and_said(
    found: Profile | BaseException,
    status: int,
    more: tuple[str, ...],
    out: Path,
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    search(monkeypatch, found)
    assert main(command(out, *more)) == status
    assert journal.read_text() == JOURNAL
    said = capsys.readouterr().err
    assert f"its scores are kept in {journal}: the same command goes on from there, --fresh begins anew" in said
    assert "nothing was kept" not in said


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


def test_fresh_begins_anew(out: Path, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = search(monkeypatch, PROFILE)
    assert main(command(out, "--fresh")) == 0, "there need not be a journal"
    out.unlink()
    journal.write_text(JOURNAL + "earlier")
    assert main(command(out, "--fresh")) == 0
    assert seen == ["", ""]


def test_a_profile_that_is_there_is_not_written_over_unless_forced(
    out: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = search(monkeypatch, PROFILE)
    out.write_text("precious")
    for more in ((), ("--fresh",)):
        assert main(command(out, *more)) == 2
        assert "--out must be new, got a file that is there already" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert seen == [], "it is refused before the work begins"
    assert main(command(out, "--force")) == 0
    assert Profile.load(out) == PROFILE
    # The same search goes on over what it has written so far.
    journal.write_text(JOURNAL)
    assert main(command(out)) == 0


def test_fresh_removes_no_other_file(
    out: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = search(monkeypatch, PROFILE)
    journal.write_text("Dear diary\n")
    assert main(command(out, "--fresh")) == 2
    assert "not a journal, so it is not removed" in capsys.readouterr().err
    assert journal.read_text() == "Dear diary\n"
    assert not seen


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
