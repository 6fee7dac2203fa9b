"""The results of a search: what its journal keeps and what it refuses."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnireuse.calibration.evaluator import Evaluator
from omnireuse.calibration.observer import Seen
from omnireuse.calibration.results import Results
from omnireuse.calibration.runs import Pictures, RunInFull
from omnireuse.errors import ConfigError
from omnireuse.loop.strategy import Strategy
from omnireuse.planning.candidate import Candidate
from omnireuse.policies import Steps

SETUP = {"steps": "8", "seed": "0"}
ONE = Candidate(steps=(0, 3, 7), forecaster="hold")
TWO = Candidate(steps=(0, 4, 7), forecaster="blend")


class Runner:
    """Its full runs are black, and its runs of a schedule the brighter, the later the second computed step."""

    steps, prompts = 2, ("one", "two")

    def __init__(self) -> None:
        self.asked: list[int] = []

    def run_in_full(self, places: range, *, record: bool) -> RunInFull:
        seen = Seen(coordinates=(1.0, 0.5), target="x0")
        return RunInFull(pictures=[np.zeros((8, 8, 3))] * len(places), full=None, seen=seen)

    def made_with(self, places: range, strategy: Strategy) -> Pictures:
        assert isinstance(strategy.policy, Steps)
        second = sorted(strategy.policy.steps)[1]
        self.asked.append(second)
        return [np.full((8, 8, 3), second / 10)] * len(places)


def scores_of(second: int) -> tuple[float, float]:
    """Of both prompts, for a schedule with this second computed step."""
    return (-20 * math.log10(second / 10),) * 2


def evaluator(runner: Any, results: Results) -> Evaluator:
    """Two prompts, whose full runs cost 2, and their runs of a candidate 3."""
    made = Evaluator(runner, results, "searched", range(2), batch_size=2, steps=2)
    made.run_in_full(record=False, advance=lambda _: None)
    return made


def filled(path: Path) -> Results:
    results = Results(path, SETUP)
    assert dict(evaluator(Runner(), results).scores([ONE, TWO], {}))[TWO] == pytest.approx(scores_of(4))
    results.close()
    return results


def test_what_was_scored_is_not_scored_again(tmp_path: Path) -> None:
    filled(tmp_path / "deep" / "journal")
    results, runner = Results(tmp_path / "deep" / "journal", SETUP), Runner()
    assert results.runs == 8
    three = Candidate(steps=(0, 5, 7), forecaster="hold")
    found = dict(evaluator(runner, results).scores([three, TWO, ONE], {}))
    for candidate, second in ((ONE, 3), (TWO, 4), (three, 5)):
        assert found[candidate] == pytest.approx(scores_of(second))
    assert runner.asked == [5]
    assert results.runs == 8 + 2 + 3
    assert results.find("held out", ONE) is None
    results.close()


def test_work_that_was_given_up_is_counted(tmp_path: Path) -> None:
    class Interrupted(Runner):
        def made_with(self, places: range, strategy: Strategy) -> Pictures:
            if self.asked == [3, 3, 4]:
                raise KeyboardInterrupt
            return super().made_with(places, strategy)

    results = Results(tmp_path / "journal", SETUP)
    batches = Evaluator(Interrupted(), results, "searched", range(2), batch_size=1, steps=2)
    batches.run_in_full(record=False, advance=lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        list(batches.scores([ONE, TWO], {}))
    results.close()
    # Two full runs, the first candidate whole, and one prompt of the second.
    again = Results(tmp_path / "journal", SETUP)
    again.close()
    assert again.runs == 2 + 3 + 1.5


def test_a_journal_of_another_search_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "journal")
    with pytest.raises(ConfigError, match=r"begun with another seed and another size; delete the file.*\(--fresh"):
        Results(tmp_path / "journal", {"steps": "8", "seed": "1", "size": "64"})


@pytest.mark.parametrize("text", ["prompts\n", '{"format": 3, "setup": {"steps": "8", "seed": "0"}}\n'])
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal").write_text(text)
    with pytest.raises(ConfigError, match=r"not a journal .*; delete it"):
        Results(tmp_path / "journal", SETUP)
    assert (tmp_path / "journal").read_text() == text


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "journal"):
        with pytest.raises(ConfigError, match="name another"):
            Results(path, SETUP)


def test_going_on_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path / "journal")
    with caplog.at_level(logging.INFO, "omnireuse"):
        Results(tmp_path / "journal", SETUP).close()
    assert "going on with the search" in caplog.text


def test_without_a_path_results_last_as_long_as_the_search() -> None:
    results, runner = Results(None, SETUP), Runner()
    part = evaluator(runner, results)
    for _ in range(2):
        assert dict(part.scores([ONE], {}))[ONE] == pytest.approx(scores_of(3))
    assert runner.asked == [3]
    results.close()
