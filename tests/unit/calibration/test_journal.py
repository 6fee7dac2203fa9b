"""The journal: what it keeps, what it loses in a kill, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from omnireuse.diffusion.calibration.candidate import Candidate
from omnireuse.diffusion.calibration.evaluator import Scores
from omnireuse.diffusion.calibration.journal import Journal, Remembered
from omnireuse.errors import ConfigError

SETUP = {"steps": "8", "seed": "0"}
ONE = Candidate(steps=(0, 3, 7), forecaster="hold")
TWO = Candidate(steps=(0, 4, 7), forecaster="blend")


class Counting:
    """An evaluator whose runs cost 3."""

    def __init__(self) -> None:
        self.asked: list[Candidate] = []
        self.runs = 0.0

    def scores(self, candidates: Sequence[Candidate], fitted: None) -> Iterator[tuple[Candidate, Scores]]:
        for candidate in candidates:
            self.asked.append(candidate)
            self.runs += 3
            yield candidate, (30.0 + candidate.steps[1], 1 / 3)


def filled(path: Path) -> Journal:
    journal = Journal(path, SETUP)
    journal.spend(2)
    assert dict(Remembered(Counting(), journal, "searched").scores([ONE, TWO]))[TWO] == (34.0, 1 / 3)
    journal.close()
    return journal


def test_what_was_scored_is_not_scored_again(tmp_path: Path) -> None:
    filled(tmp_path / "deep" / "journal")
    journal, evaluator = Journal(tmp_path / "deep" / "journal", SETUP), Counting()
    assert (journal.runs, journal.known_runs) == (8, 6)
    remembered = Remembered(evaluator, journal, "searched")
    three = Candidate(steps=(0, 5, 7), forecaster="hold")
    assert dict(remembered.scores([three, TWO, ONE])) == {
        ONE: (33.0, 1 / 3),
        TWO: (34.0, 1 / 3),
        three: (35.0, 1 / 3),
    }
    assert evaluator.asked == [three]
    assert journal.runs == 11
    assert journal.find("held out", ONE) is None
    journal.close()


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_whole(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / "journal")
    text = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(text[:-cut])
    journal = Journal(tmp_path / "journal", SETUP)
    assert "cut off" in caplog.text
    assert journal.find("searched", ONE) is not None
    assert journal.find("searched", TWO) is None
    journal.add("searched", TWO, (34.0, 1 / 3), 3.0)
    journal.close()
    assert (tmp_path / "journal").read_bytes() == text


def test_a_head_that_was_cut_off_is_written_anew(tmp_path: Path) -> None:
    Journal(tmp_path / "journal", SETUP).close()
    text = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(text[:20])
    Journal(tmp_path / "journal", SETUP).close()
    assert (tmp_path / "journal").read_bytes() == text


def test_work_that_was_given_up_is_paid_for(tmp_path: Path) -> None:
    class Dear(Counting):
        def scores(self, candidates: Sequence[Candidate], fitted: None) -> Iterator[tuple[Candidate, Scores]]:
            yield from super().scores(candidates[:1], fitted)
            self.runs += 1.5
            raise KeyboardInterrupt

    journal = Journal(None, {})
    with pytest.raises(KeyboardInterrupt):
        list(Remembered(Dear(), journal, "searched").scores([ONE, TWO]))
    assert journal.runs == 4.5


def test_a_journal_of_another_search_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "journal")
    with pytest.raises(
        ConfigError, match=r"another search \(seed 0 instead of 1, size none instead of 64\); delete it \(--fresh"
    ):
        Journal(tmp_path / "journal", {"steps": "8", "seed": "1", "size": "64"})


@pytest.mark.parametrize(
    "text",
    [
        "prompts\n",
        "[]\n",
        '{"format": 7}\n',
        '{"format": 1}\n',
        '{"format": 1, "setup": {"steps": "8", "seed": "0"}}\n{}\n',
    ],
)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal").write_text(text)
    with pytest.raises(ConfigError, match="delete it"):
        Journal(tmp_path / "journal", SETUP)
    assert (tmp_path / "journal").read_text() == text


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        Journal(tmp_path, SETUP)


def test_going_on_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path / "journal")
    with caplog.at_level(logging.INFO, "omnireuse"):
        Journal(tmp_path / "journal", SETUP).close()
    assert "going on after 2 scored schedules" in caplog.text
