"""The journal: what it keeps, what it loses in a kill, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnireuse.diffusion.calibration.candidate import Candidate
from omnireuse.diffusion.calibration.evaluator import Evaluator
from omnireuse.diffusion.calibration.jobs import Job, Local, RunInFull, RunInFullResult, Score
from omnireuse.diffusion.calibration.journal import Journal, Result
from omnireuse.diffusion.calibration.observer import Observations
from omnireuse.errors import ConfigError

SETUP = {"steps": "8", "seed": "0"}
ONE = Candidate(steps=(0, 3, 7), forecaster="hold")
TWO = Candidate(steps=(0, 4, 7), forecaster="blend")


class Counting:
    """Workers whose scores depend on the schedule, and which note what they score."""

    def __init__(self) -> None:
        self.asked: list[Candidate] = []

    def run(self, jobs: Sequence[Job[Any]]) -> Iterator[tuple[int, Any]]:
        for place, job in enumerate(jobs):
            if isinstance(job, RunInFull):
                made = [np.zeros((1, 1, 3))] * len(job.places)
                yield (
                    place,
                    RunInFullResult(pictures=made, distances=None, products=None, path=None, seen=Observations()),
                )
            else:
                assert isinstance(job, Score)
                self.asked.append(job.candidate)
                yield place, [30.0 + job.candidate.steps[1], 1 / 3]

    def share(self, value: Any) -> Any:
        return Local(value=value)

    def close(self) -> None:
        pass


def evaluator(workers: Counting, journal: Journal) -> Evaluator:
    """Two prompts, whose full runs cost 2, and their runs of a candidate 3."""
    made = Evaluator(workers, journal, "searched", range(2), batch_size=2, steps=2)
    made.run_in_full(record=False, advance=lambda _: None)
    return made


def filled(path: Path) -> Journal:
    journal = Journal(path, SETUP)
    assert dict(evaluator(Counting(), journal).scores([ONE, TWO], {}))[TWO] == (34.0, 1 / 3)
    journal.close()
    return journal


def test_what_was_scored_is_not_scored_again(tmp_path: Path) -> None:
    filled(tmp_path / "deep" / "journal")
    journal, workers = Journal(tmp_path / "deep" / "journal", SETUP), Counting()
    assert journal.runs == 8
    three = Candidate(steps=(0, 5, 7), forecaster="hold")
    assert dict(evaluator(workers, journal).scores([three, TWO, ONE], {})) == {
        ONE: (33.0, 1 / 3),
        TWO: (34.0, 1 / 3),
        three: (35.0, 1 / 3),
    }
    assert workers.asked == [three]
    assert journal.runs == 8 + 2 + 3
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
    journal.spend(3)
    journal.add("searched", TWO, Result(psnr=(34.0, 1 / 3)))
    journal.close()
    assert (tmp_path / "journal").read_bytes() == text


def test_a_head_that_was_cut_off_is_written_anew(tmp_path: Path) -> None:
    Journal(tmp_path / "journal", SETUP).close()
    text = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(text[:20])
    Journal(tmp_path / "journal", SETUP).close()
    assert (tmp_path / "journal").read_bytes() == text


def test_work_that_was_given_up_is_counted(tmp_path: Path) -> None:
    class Interrupted(Counting):
        def run(self, jobs: Sequence[Job[Any]]) -> Iterator[tuple[int, Any]]:
            for place, result in super().run(jobs):
                if place == 3:
                    raise KeyboardInterrupt
                yield place, result[:1] if isinstance(result, list) else result

    journal = Journal(tmp_path / "journal", SETUP)
    batches = Evaluator(Interrupted(), journal, "searched", range(2), batch_size=1, steps=2)
    batches.run_in_full(record=False, advance=lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        list(batches.scores([ONE, TWO], {}))
    journal.close()
    # Two full runs, the first candidate whole, and one prompt of the second.
    again = Journal(tmp_path / "journal", SETUP)
    again.close()
    assert again.runs == 2 + 3 + 1.5


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
