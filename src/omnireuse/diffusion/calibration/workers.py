"""Workers that do the jobs of a search: this process, or processes of their own through Ray."""

from __future__ import annotations

import functools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from omnireuse.diffusion.calibration.jobs import Job, Local, Runner, Shared
from omnireuse.diffusion.calibration.options import Options
from omnireuse.diffusion.calibration.runner import PipelineRunner
from omnireuse.errors import ConfigError, MissingExtraError, StateError
from omnireuse.pipelines.source import Source

__all__ = ["DEATHS", "InProcess", "RayWorkers", "Workers", "WorkersLostError", "start_workers"]

logger = logging.getLogger("omnireuse")

T = TypeVar("T")

DEATHS = 2
"""Deaths for each worker before a search gives up. Work that kills whoever does it must come to an end."""


class WorkersLostError(StateError):
    """Too many workers have died. What was scored before remains."""


class Workers(Protocol):
    """One runner, or several alike."""

    def run(self, jobs: Sequence[Job[T]]) -> Iterator[tuple[int, T]]:
        """Do the jobs.

        Yields:
            The place of a job and its result, in any order. Closing the iterator gives up the rest.
        """

    def share(self, value: T) -> Shared[T]:
        """The value in a form that jobs carry."""

    def close(self) -> None:
        """End the workers."""


def start_workers(source: Source, options: Options, known: Sequence[str]) -> Workers:
    """This process, or as many processes as the options say.

    Args:
        known: names that a mistyped argument of the call may have meant.

    Raises:
        ConfigError: processes for a pipeline that is loaded already.
    """
    if not options.workers:
        return InProcess(_make_runner(source, options, known))
    if source.is_loaded:
        raise ConfigError(
            f"calibrate(pipeline={type(source.given).__name__}): every worker loads a pipeline of its own; give the "
            "folder of the pipeline, its id on a hub, or a function without arguments that makes it"
        )
    return RayWorkers(functools.partial(_make_worker, source, options, known), options.workers)


def _make_worker(source: Source, options: Options, known: Sequence[str], gpu: bool) -> Runner:
    if not gpu:
        torch.set_num_threads(1)  # the other workers have the other threads
    return _make_runner(source, options, known)


def _make_runner(source: Source, options: Options, known: Sequence[str]) -> Runner:
    return PipelineRunner(
        source.load(),
        options.prompts,
        call=options.full_call,
        seed=options.seed,
        batch_size=options.batch_size,
        pictures=options.pictures,
        known=known,
    )


class InProcess:
    """One job after the other in this process."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(self, jobs: Sequence[Job[T]]) -> Iterator[tuple[int, T]]:
        """Do the jobs in the given order."""
        for place, job in enumerate(jobs):
            yield place, job.run(self._runner)

    def share(self, value: T) -> Shared[T]:
        """As `Workers.share`."""
        return Local(value=value)

    def close(self) -> None:
        """As `Workers.close`."""


class RayWorkers:
    """Ray actors with a runner each. A job goes to a free one. One that dies is replaced, and its job done again.

    Joins the cluster that Ray is initialised for or that ``RAY_ADDRESS`` names. Otherwise starts Ray on this machine,
    and ends it.

    Args:
        make: makes a runner, in the worker, and is given whether the worker has a GPU. Must be picklable.
        count: workers, ≥ 1; at most one for each GPU of the cluster, or for each CPU where there is none.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: more workers than the cluster has room for.
    """

    def __init__(self, make: Callable[[bool], Any], count: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("calibrate(workers=…)", "ray") from error
        self._ray, self._make = ray, make
        self._free: list[Any] = []
        self._started = not ray.is_initialized()
        if self._started:
            # The workers' own output goes to Ray's logs, not across a progress bar.
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            if not os.environ.get("RAY_ADDRESS"):
                options |= {"num_cpus": max(count, os.cpu_count() or 1), "include_dashboard": False}
            ray.init(**options)
        room = ray.cluster_resources()
        kind = "GPU" if room.get("GPU") else "CPU"
        if count > room.get(kind, 0):
            self.close()
            raise ConfigError(
                f"calibrate(workers={count}): workers must be at most {room.get(kind, 0):g}, one a {kind} of the "
                "cluster"
            )
        self._gpu = kind == "GPU"
        self._deaths_left = DEATHS * count
        for _ in range(count):
            self._spawn()

    def _spawn(self) -> None:
        actor = self._ray.remote(_Worker).options(num_cpus=1, num_gpus=int(self._gpu))
        self._free.append(actor.remote(self._make, self._gpu))

    def run(self, jobs: Sequence[Job[T]]) -> Iterator[tuple[int, T]]:
        """As `Workers.run`.

        Raises:
            WorkersLostError: too many workers have died.
            Exception: what a job raised in its worker.
        """
        left = deque(range(len(jobs)))
        running: dict[Any, tuple[int, Any]] = {}
        try:
            while left or running:
                while left and self._free:
                    place, actor = left.popleft(), self._free.pop()
                    running[actor.run.remote(jobs[place])] = place, actor
                if not running:
                    raise WorkersLostError("no worker is left")
                (done,), _ = self._ray.wait(list(running), num_returns=1)
                place, actor = running.pop(done)
                try:
                    result = self._ray.get(done)
                except self._ray.exceptions.RayActorError as error:
                    left.appendleft(place)
                    self._restart(error)
                    continue
                except self._ray.exceptions.RayTaskError as error:
                    self._free.append(actor)
                    raise error.cause from error
                self._free.append(actor)
                yield place, result
        finally:
            # Jobs that were given up: their workers are free as soon as they have finished them.
            self._free.extend(actor for _, actor in running.values())

    def _restart(self, error: Exception) -> None:
        cause = str(error).splitlines()[0]
        if self._deaths_left == 0:
            raise WorkersLostError(f"workers keep dying, the last one so: {cause}") from error
        self._deaths_left -= 1
        logger.warning("a worker died (%s); its work is done by another", cause)
        self._spawn()

    def share(self, value: T) -> Shared[T]:
        """As `Workers.share`: in Ray's object store, owned by this process, so that no death loses it."""
        return _InStore(self._ray.put(value))

    def close(self) -> None:
        """End the workers, and Ray if it was started here."""
        for actor in self._free:
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()


class _InStore:
    """A value in Ray's object store."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def get(self) -> Any:
        import ray

        return ray.get(self._reference)


class _Worker:
    """The actor. It makes its runner with the first job, so that an error of that is the job's, not a death."""

    def __init__(self, make: Callable[[bool], Any], gpu: bool) -> None:
        self._make, self._gpu = make, gpu
        self._runner: Any = None

    def run(self, job: Job[T]) -> T:
        if self._runner is None:
            self._runner = self._make(self._gpu)
        return job.run(self._runner)
