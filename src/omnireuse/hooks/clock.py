"""The clock of one sampling loop: which step a denoiser call belongs to, and whether it begins a run.

The scheduler tells the steps: its `set_timesteps` announces a run, and its `step` ends a step. Without a scheduler the
step that the pipeline gives to `cache_context` counts. In a run that `expect` or a call of the pipeline announces, a
step ends with `advance`, or when a call is given another timestep than the call before. No other call belongs to a run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from omnireuse.base.validation import is_number
from omnireuse.hooks.denoisers import parameters_of, unwrapped
from omnireuse.hooks.run import Run
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.noise.schedulers import noise_levels

__all__ = ["NAMES", "Asked", "Begin", "Clock", "StepHint", "timestep_of"]

NAMES = ("timestep", "timesteps", "t", "sigma", "noise_level")
"""Names of the argument, the first found counts."""


class StepHint(NamedTuple):
    """The loop's position, from the pipeline's `cache_context`."""

    step: int | None = None
    total: int | None = None
    sigma: Any = None


class Asked(NamedTuple):
    """A denoiser call, before it is known where it belongs.

    Attributes:
        module: the denoiser.
        denoiser: its place among the pipeline's denoisers.
        branch: its name, if the pipeline or its guider gives one.
    """

    module: torch.nn.Module
    denoiser: int
    branch: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def latents(self) -> torch.Tensor | None:
        """The first tensor that the denoiser is given."""
        given = (*self.args[:1], *map(self.kwargs.get, ("hidden_states", "sample", "x")), *self.kwargs.values())
        return next((each for each in given if isinstance(each, torch.Tensor)), None)

    @property
    def has_times(self) -> bool:
        """True if a sample has several timesteps: one for each frame, or for each token."""
        time, latents = given_timestep(self.module, self.args, self.kwargs), self.latents
        return isinstance(time, torch.Tensor) and latents is not None and time.numel() > len(latents)


@dataclass(frozen=True, kw_only=True)
class Begin:
    """A run begins with a call.

    Attributes:
        total: number of steps; None if it is not known.
        levels: noise level of each step; empty if unknown.
        scheduler: tells the steps; None if none does.
        completes: whether the run before is complete.
    """

    total: int | None
    levels: Sequence[NoiseLevel] = ()
    scheduler: Any = None
    completes: bool = False


def reads_at_once(tensor: torch.Tensor) -> bool:
    """True if reading a tensor waits for no device."""
    return tensor.device.type == "cpu"


class Timetable:
    """A scheduler's timesteps, and which of them a loop hands on. Those of another shape than (steps,) tell no steps.

    Attributes:
        count: number of the scheduler's timesteps.
        begin: the one at which the run begins.
    """

    def __init__(self, scheduler: Any) -> None:
        found = torch.as_tensor(scheduler.timesteps)
        self._scheduler, self._timesteps = scheduler, found if found.ndim == 1 else found.new_empty(0)
        self.count, self.begin = len(self._timesteps), 0

    @cached_property
    def values(self) -> list[float]:
        """The timesteps. Cost: one read of the device, the first time."""
        return [float(each) for each in self._timesteps.tolist()]

    def start(self, begin: int, total: int) -> Begin:
        """A run that begins at a timestep, and has so many steps if there are as many."""
        self.begin, levels = begin, noise_levels(self._scheduler)[begin:]
        return Begin(total=total if 0 < total <= len(levels) else len(levels), levels=levels, scheduler=self._scheduler)

    def addresses(self) -> dict[int, int]:
        """Where the timestep of each step of the run lies in memory."""
        mine = self._timesteps
        if type(mine) is not torch.Tensor or mine.is_meta or not mine.is_contiguous():
            return {}
        return {at - self.begin: mine.data_ptr() + at * mine.element_size() for at in range(self.begin, self.count)}

    def entry(self, given: object) -> int | None:
        """The place of this timestep, if it is one of these by its place in memory, as a loop over them gets it."""
        mine = self._timesteps
        if type(given) is not torch.Tensor or type(mine) is not torch.Tensor or not mine.is_contiguous():
            return None
        is_one = given.numel() == 1 or (given.numel() and not any(given.stride()))
        if not is_one or given.is_meta or given.device != mine.device:
            return None
        if given.untyped_storage().data_ptr() != mine.untyped_storage().data_ptr():
            return None
        place = int(given.storage_offset() - mine.storage_offset())
        return place if 0 <= place < len(mine) else None

    def find(self, given: Any, near: int) -> int | None:
        """The place of a timestep that the scheduler is handed, of equal ones the next from `near` on, else the last;
        None if it is none of these, or reading it would wait for a device."""
        place = self.entry(given)
        if place is not None:
            return near if place == near or self.values[place] == self.values[near] else place
        if isinstance(given, torch.Tensor):
            if not given.numel() or given.is_meta or not reads_at_once(given):
                return None
            given = given.max()
        elif not is_number(given):
            return None
        places = [place for place, each in enumerate(self.values) if each == float(given)]
        return next((place for place in places if place >= near), places[-1] if places else None)


class Clock:
    """The steps of one loop.

    Args:
        in_call: whether the pipeline's own call makes the loop.
    """

    def __init__(self, *, in_call: bool) -> None:
        self._in_call, self._is_announced = in_call, False
        self.scheduler: Any = None
        """Its timesteps were set, and its run has not begun."""
        self.hint = StepHint()
        """From the cache context that the pipeline has entered."""
        self.forget()

    def forget(self) -> None:
        self.scheduler = None
        self._table: Timetable | None = None
        """Of the run under way."""
        self._is_handed_on = False
        """Whether the denoiser is given the scheduler's timesteps themselves."""
        self.due: Mapping[int, int] = {}
        """The address of each step's timestep."""
        self._hinted: int | None = None
        self._time: float | None = None
        """The timestep of the call before, in a run without a scheduler."""

    def announce(self) -> None:
        """Announce that the next call begins a run."""
        self.forget()
        self._is_announced = True

    def move(
        self, run: Run | None, asked: Asked, *, is_watched: bool, expected: int | None, taken: object
    ) -> Begin | int | None:
        """The place of a denoiser call: the number of steps to go on in the run, or the run that it begins; None for a
        call that belongs to no run.

        Args:
            run: under way.
            is_watched: whether a scheduler tells the steps.
            expected: number of steps of a run that no scheduler tells; None if it is not known.
            taken: how many of the scheduler's steps the pipeline's call says that it takes.
        """
        if self.scheduler is not None:
            return self._scheduled(asked, taken if self._in_call and isinstance(taken, int) else 0)
        if run is not None and self._is_foreign(run, asked):
            return None
        if run is not None and run.is_stepped:
            return 0
        if self.hint.step is not None:
            return self._hinted_move(run, self.hint.step, expected, begins=not is_watched)
        if is_watched:
            return None if run is None else 0
        return self._announced(run, asked, expected)

    def _scheduled(self, asked: Asked, taken: int) -> Begin:
        scheduler, table = self.scheduler, Timetable(self.scheduler)
        entry = table.entry(given_timestep(asked.module, asked.args, asked.kwargs))
        self.forget()
        self._table, self._is_handed_on, self._hinted = table, entry is not None, self.hint.step
        # Image-to-image starts in the middle of the timesteps, and some pipelines stop before their end.
        begin = getattr(scheduler, "begin_index", None)
        found = table.start((entry or 0) if begin is None else begin, taken)
        self.due = table.addresses()
        return found

    def _hinted_move(self, run: Run | None, now: int, expected: int | None, *, begins: bool) -> Begin | int | None:
        """By the named step; a step before the last one begins another run."""
        if run is not None and self._hinted is not None and now >= self._hinted:
            ahead = now - self._hinted
            if not begins or not run.is_over(ahead):
                self._hinted = now
                return ahead
        if not begins:
            # A scheduler was told the steps, and the pipeline goes through more of them, or through them again.
            return None if run is None else 0
        total = self.hint.total or expected
        self.forget()
        self._hinted = now
        return Begin(total=total, completes=True)

    def _announced(self, run: Run | None, asked: Asked, expected: int | None) -> Begin | int | None:
        before, self._time = self._time, timestep_of(asked.module, asked.args, asked.kwargs)
        if run is None:
            is_announced, self._is_announced = self._is_announced, False
            return Begin(total=expected) if is_announced else None
        if self._time == before:
            return 0
        return None if run.is_over(1) else 1

    def _is_foreign(self, run: Run, asked: Asked) -> bool:
        """True if a call in a user's own loop over the scheduler's timesteps is not given that of the present step: a
        preview, say.

        A call of the pipeline makes previews in callbacks, which are named, so nobody asks for it there.
        """
        table = self._table
        if self._in_call or table is None or not self._is_handed_on or (at := table.begin + run.step) >= table.count:
            return False
        place = table.entry(given_timestep(asked.module, asked.args, asked.kwargs))
        return place is None or (place != at and table.values[place] != table.values[at])

    def is_again(self, run: Run, held: Collection[str]) -> bool:
        """True if a call is given the time of the step before, though the scheduler's have gone on.

        Args:
            held: the inputs that are what they were at the step before, by name.
        """
        table = self._table
        if table is None or not run.step or (at := table.begin + run.step) >= table.count:
            return False
        return table.values[at - 1] != table.values[at] and any(name in held for name in NAMES)

    def ahead(self, run: Run, timestep: object) -> int:
        """How far the step whose timestep the scheduler is handed lies behind the present one: 0 in a loop that goes
        through the scheduler's timesteps, -1 if it is stepped again at the timestep of the step that has just ended.

        Cost: none in a loop over the scheduler's timesteps; a timestep of another tensor on a device is not read.
        """
        table = self._table
        if table is None or (at := table.begin + run.step) >= table.count:
            return 0
        place = table.find(timestep, at)
        return 0 if place is None else place - at

    def jump(self, run: Run, ahead: int) -> Begin:
        """The run that begins so many steps ahead."""
        assert self._table is not None, "timesteps have shown it"
        found = self._table.start(self._table.begin + run.step + ahead, (run.generation.total or 0) - run.step - ahead)
        self.due = self._table.addresses()
        return found


def given_timestep(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The argument that a denoiser is given as its timestep, by position or by name; None if there is none."""
    # The class's own signature counts: hooks replace that of an instance.
    values = {**dict(zip(parameters_of(type(unwrapped(module)).forward), args, strict=False)), **kwargs}
    for name in NAMES:
        given = values.get(name)
        if (isinstance(given, torch.Tensor) and given.numel()) or is_number(given):
            return given
    return None


def timestep_of(module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """The timestep that a denoiser is called with, as a number; None if there is none.

    Of several (one for each sample or token) it is the largest: tokens that are given and not denoised have 0.

    Cost: one read of the device.
    """
    given = given_timestep(module, args, kwargs)
    return float(given.max()) if isinstance(given, torch.Tensor) else None if given is None else float(given)
