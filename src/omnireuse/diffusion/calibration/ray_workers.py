"""Judges in processes of their own, one a GPU or one a CPU thread, dealt out by Ray."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from omnireuse.errors import ConfigError, MissingExtraError, StateError

__all__ = ["DEATHS", "RayWorkers", "WorkersLostError"]

logger = logging.getLogger("omnireuse")

#: Deaths a worker that a search takes before it gives up. Work that kills whoever does it must come to an end.
DEATHS = 2


class WorkersLostError(StateError):
    """Too many workers have died. What was scored until then stands."""


class RayWorkers:
    """As many actors as asked for, each with a judge of its own.

    Calls go one at a time to whoever is free. One that dies is replaced, and its call is given to another. Joins the
    cluster that Ray is initialised for, or that ``RAY_ADDRESS`` names; else it starts Ray on this machine, and ends it.

    Args:
        make: makes a judge, in the worker; told whether the worker has a GPU. Must be picklable.
        count: workers, ≥ 1; at most one a GPU where the cluster has any.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: more workers than the cluster has room for.
    """

    def __init__(self, make: Callable[[bool], Any], count: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("calibrate(workers=…)", "ray") from error
        self._ray = ray
        self._make = make
        self._started = not ray.is_initialized()
        if self._started:
            # The workers' own output goes to Ray's logs, rather than across a progress bar.
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
        self._free: list[Any] = []
        self._coming: dict[Any, Any] = {}
        for _ in range(count):
            self._hire()

    def _hire(self) -> None:
        actor = self._ray.remote(_Worker).options(num_cpus=1, num_gpus=int(self._gpu)).remote(self._make, self._gpu)
        self._coming[actor.begin.remote()] = actor

    def run(self, method: str, calls: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """As `Workers.run`, in the order in which they are done.

        Raises:
            WorkersLostError: too many workers have died.
            Exception: what a call raised in its worker.
        """
        left = deque(range(len(calls)))
        running: dict[Any, tuple[int, Any]] = {}
        try:
            while left or running:
                while left and self._free:
                    place, actor = left.popleft(), self._free.pop()
                    running[actor.call.remote(method, *calls[place])] = place, actor
                if not running and not self._coming:
                    raise WorkersLostError("no worker is left")
                (done,), _ = self._ray.wait([*running, *self._coming], num_returns=1)
                is_new = done in self._coming
                try:
                    result = self._ray.get(done)
                except self._ray.exceptions.RayTaskError as error:
                    if is_new:
                        del self._coming[done]
                    raise error.cause from error
                except self._ray.exceptions.RayActorError as error:
                    if is_new:
                        del self._coming[done]
                    else:
                        left.appendleft(running.pop(done)[0])
                    self._mourn(error)
                    continue
                if is_new:
                    self._free.append(self._coming.pop(done))
                else:
                    place, actor = running.pop(done)
                    self._free.append(actor)
                    yield place, result
        finally:
            # Given up by who asked: they are free as soon as they have finished what they are at.
            self._free.extend(actor for _, actor in running.values())

    def _mourn(self, error: Exception) -> None:
        cause = str(error).splitlines()[0]
        if self._deaths_left == 0:
            raise WorkersLostError(f"workers keep dying, the last one so: {cause}") from error
        self._deaths_left -= 1
        logger.warning("a worker died (%s); its work is done by another", cause)
        self._hire()

    def share(self, value: Any) -> Any:
        """A reference to the value in Ray's object store, owned by this process, so that no death loses it."""
        return self._ray.put(value)

    def close(self) -> None:
        """Dismiss the workers, and end Ray if it was started here."""
        for actor in (*getattr(self, "_free", ()), *getattr(self, "_coming", {}).values()):
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()


class _Worker:
    """What runs in a worker's process."""

    def __init__(self, make: Callable[[bool], Any], gpu: bool) -> None:
        # Nothing that can fail: Ray would report it as a death.
        self._make, self._gpu = make, gpu

    def begin(self) -> None:
        self._judge = self._make(self._gpu)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._judge, method)(*arguments)
