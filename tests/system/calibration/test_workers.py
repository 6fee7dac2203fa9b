"""Workers in other processes: who dies is replaced, what fails says why, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from omnireuse.diffusion.calibration.jobs import Shared
from omnireuse.diffusion.calibration.workers import DEATHS, RayWorkers, WorkersLostError
from omnireuse.errors import ConfigError

pytest.importorskip("ray", reason="the extra omnireuse[ray] is not installed")

pytestmark = pytest.mark.slow  # Ray starts a cluster of its own


class Toy(NamedTuple):
    """What jobs are done with."""

    folder: Path


def toy(folder: Path, gpu: bool) -> Toy:
    """Make it, in the worker."""
    assert not gpu
    return Toy(folder)


@dataclass
class Double:
    number: int

    def run(self, runner: Any) -> int:
        return 2 * self.number


@dataclass
class DieOnce:
    number: int

    def run(self, runner: Any) -> int:
        mark = runner.folder / f"died at {self.number}"
        if self.number % 2 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.number


class Die:
    def run(self, runner: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Fail:
    def run(self, runner: Any) -> None:
        raise ConfigError("toy: must work")


@dataclass
class Length:
    value: Shared[bytes]

    def run(self, runner: Any) -> tuple[int, int]:
        return len(self.value.get()), os.getpid()


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def workers(ray: Any, tmp_path: Path) -> Iterator[RayWorkers]:
    workers = RayWorkers(partial(toy, tmp_path), 2)
    yield workers
    workers.close()
    assert ray.is_initialized(), "who did not start Ray does not end it"


def test_every_call_is_answered_once_also_after_some_were_given_up(workers: RayWorkers) -> None:
    given_up = workers.run([Double(number) for number in range(6)])
    next(given_up)
    given_up.close()
    answers = list(workers.run([Double(number) for number in range(7)]))
    assert sorted(answers) == [(number, 2 * number) for number in range(7)]
    assert list(workers.run([])) == []


def test_what_is_shared_reaches_all_processes(workers: RayWorkers) -> None:
    shared = workers.share(b"x" * 1000)
    answers = [answer for _, answer in workers.run([Length(shared)] * 6)]
    assert {length for length, _ in answers} == {1000}
    assert os.getpid() not in {process for _, process in answers}


def test_the_work_of_the_dead_is_done_by_others(workers: RayWorkers, caplog: pytest.LogCaptureFixture) -> None:
    answers = list(workers.run([DieOnce(number) for number in range(6)]))
    assert sorted(answers) == [(number, number) for number in range(6)]
    assert caplog.text.count("a worker died") == 3


def test_work_that_kills_everybody_comes_to_an_end(workers: RayWorkers, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(WorkersLostError, match="workers keep dying"):
        list(workers.run([Die()]))
    assert caplog.text.count("a worker died") == 2 * DEATHS


def test_a_failure_is_that_of_the_call(workers: RayWorkers) -> None:
    with pytest.raises(ConfigError, match="toy: must work"):
        list(workers.run([Fail()]))
    assert list(workers.run([Double(4)])) == [(0, 8)]


def test_a_judge_that_cannot_be_made_says_why(ray: Any) -> None:
    def broken(gpu: bool) -> Any:
        raise ConfigError("no such folder")

    workers = RayWorkers(broken, 1)
    with pytest.raises(ConfigError, match="no such folder"):
        list(workers.run([Double(4)]))
    workers.close()


def test_more_workers_than_the_cluster_has_room_for_are_refused(ray: Any) -> None:
    with pytest.raises(ConfigError, match=r"workers=3\): workers must be at most 2, one a CPU"):
        RayWorkers(partial(toy, Path()), 3)
