"""The clock of one sampling loop: which step a denoiser call belongs to, and whether it begins a run.

A scheduler tells the steps: its `set_timesteps` announces a run, and its `step` ends a step. Without a scheduler the
step that the pipeline gives to `cache_context` counts, or the user's `advance`. Timesteps are read only where nobody
tells: which of the scheduler's steps a loop begins at or goes on with, and, in loops without a scheduler whose steps
nobody ends, a step ends when a call comes with another timestep, or with other latents at an equal one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import torch

from omnireuse.base.validation import is_number
from omnireuse.hooks.denoisers import parameters_of, unwrapped
from omnireuse.hooks.run import Run
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.noise.schedulers import noise_levels

__all__ = ["NAMES", "Asked", "Begin", "Clock", "StepHint", "StepsByTimestep", "timestep_of"]

logger = logging.getLogger("omnireuse")

_SCALE_TOLERANCE = 0.01
"""Rounding of a scaled timestep in bfloat16 is 0.4 %."""

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
        ends_step: whether the step before is over.
    """

    total: int | None
    levels: Sequence[NoiseLevel] = ()
    scheduler: Any = None
    completes: bool = False
    ends_step: bool = False


def reads_at_once(tensor: torch.Tensor) -> bool:
    """True if reading a tensor waits for no device."""
    return tensor.device.type == "cpu"


class Timetable:
    """A scheduler's timesteps, and which of them a loop hands on.

    Args:
        timesteps: of the scheduler, shape (steps,), or numbers; of another shape they tell no steps.
    """

    def __init__(self, timesteps: object) -> None:
        found = torch.as_tensor(timesteps)
        self._timesteps = found if found.ndim == 1 else found.new_empty(0)
        self.count, self.begin = len(self._timesteps), 0

    @cached_property
    def values(self) -> list[float]:
        """The timesteps. Cost: one read of the device, the first time."""
        return [float(each) for each in self._timesteps.tolist()]

    def start(self, begin: int) -> dict[int, int]:
        """Begin a run at a timestep; returns where the timestep of each of its steps lies in memory."""
        self.begin, mine = begin, self._timesteps
        if type(mine) is not torch.Tensor or mine.is_meta or not mine.is_contiguous():
            return {}
        return {step - begin: mine.data_ptr() + step * mine.element_size() for step in range(begin, self.count)}

    def entry(self, given: Any) -> int | None:
        """The step whose timestep this is by its place in memory, as a loop over the timesteps gets it."""
        mine = self._timesteps
        is_entry = type(given) is type(mine) is torch.Tensor and given.numel() and not any(given.stride())
        if not is_entry or not mine.is_contiguous() or given.is_meta or given.device != mine.device:
            return None
        if given.untyped_storage().data_ptr() != mine.untyped_storage().data_ptr():
            return None
        place = given.storage_offset() - mine.storage_offset()
        return place if 0 <= place < len(mine) else None

    def read(self, given: Any) -> float | None:
        """The value of a timestep; None if reading it would wait for a device."""
        if not isinstance(given, torch.Tensor):
            return float(given) if is_number(given) else None
        if not given.numel() or given.is_meta:
            return None
        if reads_at_once(given):
            return float(given.max())
        place = self.entry(given)
        return None if place is None else self.values[place]

    def places(self, value: float | None) -> list[int]:
        """The steps with this timestep; solvers of second order have two of each."""
        return [place for place, each in enumerate(self.values) if each == value]


class Clock:
    """The steps of one loop.

    Args:
        in_call: whether the pipeline's own call makes the loop.
    """

    def __init__(self, *, in_call: bool) -> None:
        self._in_call = in_call
        self.scheduler: Any = None
        """Its timesteps were set, and its run has not begun."""
        self.hint = StepHint()
        """From the cache context that the pipeline has entered."""
        self._by_timestep = StepsByTimestep()
        self.forget()

    def forget(self) -> None:
        """Forget the run."""
        self.scheduler = None
        self._by_timestep.last = None
        self._scheduler: Any = None
        """Of the run under way."""
        self._table: Timetable | None = None
        self.due: Mapping[int, int] = {}
        """The address of each step's timestep."""
        self._hinted: int | None = None
        self._calls_a_step: int | None = None
        self._latents: tuple[torch.Tensor, int | None] | None = None
        self._scale: float | None = None
        self._agreed: set[int] = set()

    def announce(self) -> None:
        """Announce that the next call begins a run."""
        self.forget()
        self._by_timestep.announce()

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
            return self._scheduled(asked, taken if self._in_call else None)
        if run is not None and not self._in_call and self._is_foreign(run, asked):
            return None
        if run is not None and run.is_stepped:
            return 0
        if self.hint.step is not None:
            return self._hinted_move(run, self.hint.step, expected, begins=not is_watched)
        if is_watched:
            return None if run is None else 0
        return self._timed(run, asked, expected)

    def _scheduled(self, asked: Asked, taken: object) -> Begin:
        scheduler = self.scheduler
        table = Timetable(scheduler.timesteps)
        # Image-to-image starts in the middle of the timesteps, and some pipelines stop before their end.
        begin = getattr(scheduler, "begin_index", None)
        if begin is None:
            begin = self._first(table, asked, taken) if self._in_call else self._first_of_loop(table, asked)
        self.forget()
        self._scheduler, self._table, self._hinted = scheduler, table, self.hint.step
        self.due = table.start(begin)
        levels = noise_levels(scheduler)[begin:]
        total = taken if isinstance(taken, int) and 0 < taken <= len(levels) else len(levels)
        return Begin(total=total, levels=levels, scheduler=scheduler)

    def _first(self, table: Timetable, asked: Asked, taken: object) -> int:
        """The first step of a loop in the pipeline's call, whose scheduler was not told (DDIM is not)."""
        count = table.count
        if not isinstance(taken, int) or not 0 < taken < count:
            return 0
        now = timestep_of(asked.module, asked.args, asked.kwargs)
        if table.values[count - taken] == now:
            return count - taken
        return next(iter(table.places(now)), 0)

    def _first_of_loop(self, table: Timetable, asked: Asked) -> int:
        """The first step of a user's own loop, which may go over a part of the timesteps."""
        now, count = timestep_of(asked.module, asked.args, asked.kwargs), table.count
        if now is None or not count:
            return 0
        # A loop of the last step alone is none: there, a scaled timestep happens to be an unscaled one.
        places = [place for place in table.places(now) if place < count - 1]
        if not places:
            scaled = now * float(getattr(getattr(self.scheduler, "config", None), "num_train_timesteps", 1))
            offs = [abs(each - scaled) for each in table.values]
            nearest = min(range(count), key=offs.__getitem__)
            places = [nearest] if offs[nearest] <= _SCALE_TOLERANCE / 2 * abs(scaled) and nearest < count - 1 else []
        return next(iter(places), 0)

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

    def _timed(self, run: Run | None, asked: Asked, expected: int | None) -> Begin | int | None:
        now = timestep_of(asked.module, asked.args, asked.kwargs)
        if now is None:
            warn_without_timestep(type(unwrapped(asked.module)).__name__)
            return None
        place, latents = self._by_timestep.see(now), asked.latents
        if run is not None and place == "same step":
            if not self._is_called_again(run, asked) or self._is_same(latents):
                return 0
            place = "next step"
        if run is not None and self._calls_a_step is None:
            self._calls_a_step = run.calls
        if run is None or place == "next run" or run.is_over(1):
            self.forget()
            self._by_timestep.last = now
        self._latents = None if latents is None else (latents, _version(latents))
        if self._calls_a_step is None:
            return Begin(total=expected, ends_step=run is not None)
        return 1

    def _is_called_again(self, run: Run, asked: Asked) -> bool:
        """True if the present step has had all the calls that a step has."""
        if asked.branch is not None:
            return run.branches[asked.denoiser, asked.branch] > 0
        return self._calls_a_step is not None and run.calls >= self._calls_a_step

    def _is_same(self, latents: torch.Tensor | None) -> bool:
        """True if the step has begun with these latents. Cost: a read of the device if it is another tensor."""
        if latents is None or self._latents is None:
            return True
        before, version = self._latents
        if latents is before:
            return _version(latents) == version
        return latents.shape == before.shape and torch.equal(latents, before)

    def _is_foreign(self, run: Run, asked: Asked) -> bool:
        """True if a call in a user's own loop has another timestep than the present step: a preview, say.

        Known if the loop hands on the scheduler's timesteps, or a multiple of them. A call of the pipeline makes
        previews in callbacks, which are named, so nobody asks for it there.
        """
        table = self._table
        if table is None or (index := table.begin + run.step) >= table.count:
            return False
        given = given_timestep(asked.module, asked.args, asked.kwargs)
        place = table.entry(given)
        if place is not None:
            return place != index and table.values[place] != table.values[index]
        value = table.read(given)
        if value is None or not (expected := table.values[index]):
            return False
        if not self._agreed:
            self._scale = value / expected
        if self._scale is None:
            return False
        tolerance = 0.0 if self._scale == 1 else _SCALE_TOLERANCE * abs(expected * self._scale)
        if abs(value - expected * self._scale) <= tolerance:
            self._agreed.add(index)
            return False
        if self._scale == 1 or len(self._agreed) > 1:
            return True
        self._scale = None
        return False

    def is_made_again(self, run: Run, timestep: object) -> bool:
        """True if the scheduler is handed the timestep of the step that has just ended: it is stepped for each window.

        Cost: as that of `moved_to`.
        """
        before = self._moved_from(run)
        return before is not None and self._table is not None and self._table.read(timestep) == before

    def is_again(self, run: Run, held: Collection[str]) -> bool:
        """True if a call is given the time of the step before, though the scheduler's have gone on.

        Args:
            held: the inputs that are what they were at the step before, by name.
        """
        return self._moved_from(run) is not None and any(name in held for name in NAMES)

    def _moved_from(self, run: Run) -> float | None:
        """The timestep of the step before, if the present one has another; None if it has not, or neither is known."""
        table = self._table
        if table is None or not run.step or (index := table.begin + run.step) >= table.count:
            return None
        before, now = table.values[index - 1 : index + 1]
        return before if before != now else None

    def moved_to(self, run: Run, timestep: object) -> Begin | None:
        """The run that begins at the step whose timestep the scheduler is handed; None if it is the present step's.

        Cost: none in a loop over the scheduler's timesteps; a timestep of another tensor on a device is not read.
        """
        table = self._table
        if table is None or (index := table.begin + run.step) >= table.count or table.entry(timestep) == index:
            return None
        value = table.read(timestep)
        if value is None or table.values[index] == value:
            return None
        places = sorted(table.places(value), key=lambda place: (place < index, abs(place - index)))
        if not places:
            return None
        end, begin = table.begin + (run.generation.total or 0), places[0]
        self.due = table.start(begin)
        levels = noise_levels(self._scheduler)[begin:]
        total = end - begin if 0 < end - begin <= len(levels) else len(levels)
        return Begin(total=total, levels=levels, scheduler=self._scheduler)


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


@lru_cache(maxsize=256)
def warn_without_timestep(model: str) -> None:
    """Warn once for each class that nothing is reused, because its steps are not known."""
    logger.warning(
        "%s is called without a timestep (looked for %s), and no scheduler tells the steps: nothing is reused; "
        "enable reuse on a pipeline with its scheduler, or name the argument in the signature of forward",
        model,
        ", ".join(NAMES),
    )


class StepsByTimestep:
    """Steps and runs, told apart by the timesteps of the calls in one thread.

    Within a run timesteps change in one direction, and a run begins when they jump back. They fall as a rule. The
    first change after an announcement shows the direction. Without one, two changes in a row against the assumed
    direction reverse it.
    """

    def __init__(self) -> None:
        self.last: float | None = None
        """Timestep of the last call; None before the first of a run."""
        self._rises = False
        self._is_announced = False
        self._against = 0

    def announce(self) -> None:
        """Announce that the next call begins a run."""
        self.last, self._is_announced = None, True

    def see(self, now: float) -> Literal["same step", "next step", "next run"]:
        """The place of a call with this timestep."""
        before, self.last = self.last, now
        if before is None:
            return "next run"
        if now == before:
            return "same step"
        if self._is_announced:
            self._rises, self._is_announced = now > before, False
        if (now > before) == self._rises:
            self._against = 0
            return "next step"
        self._against += 1
        if self._against == 2:
            self._rises, self._against = not self._rises, 0
        return "next run"


def _version(tensor: torch.Tensor) -> int | None:
    """The number of in-place changes of a tensor; None for one of inference mode, which counts none."""
    return None if tensor.is_inference() else tensor._version
