"""Rows for all steps of a schedule at once: a projection that is away comes in once for all of them.

If a row is missing and weights are away, the denoiser runs with each timestep of the scheduler and the other arguments
of this call, up to the first module that is given the row's input. Then one projection after another is brought in, and
called with what it would be given at each step. These are calls like any other: each row belongs to the input that the
projection was given. So a wrong guess costs time, and cannot make a wrong row.
"""

from __future__ import annotations

import inspect
import logging
import operator
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from omnireuse.hooks.interception import MethodCall, intercept
from omnireuse.modulation.call import NOW, Call
from omnireuse.modulation.rows import Rows
from omnireuse.modulation.table import Key, Table
from omnireuse.modulation.values import is_token_free

__all__ = ["Ahead"]

logger = logging.getLogger("omnireuse")

WAYS: tuple[Callable[[torch.Tensor, torch.dtype], torch.Tensor], ...] = (
    lambda t, dtype: t.to(dtype),
    lambda t, dtype: t.to(dtype) / 1000,
    lambda t, dtype: (t / 1000).to(dtype),
    lambda t, dtype: (1 - t / 1000).to(dtype),
    lambda t, dtype: ((1000 - t) / 1000).to(dtype),
)
"""How pipelines of diffusers hand a scheduler's timesteps to the denoiser."""


class _Reached(BaseException):
    """Ends a run of the denoiser early. It is no `Exception`, so that no handler in the model catches it."""

    def __init__(self, found: object) -> None:
        self.found = found


class Ahead:
    """Makes the rows of one denoiser's coming steps.

    Attributes:
        order: keys of a whole call, in the order in which projections are called; empty if that is not known.
    """

    def __init__(self, cache: Rows) -> None:
        self._cache = cache
        self.order: list[Key] = []
        self._ways = WAYS
        self._picture = 0
        self._tried: list[Any] = []
        """Values with which a call of this picture began, foreseen or not."""

    def fill(self, call: Call, missing: Key) -> bool:
        """Make the rows of all steps that a missing one belongs to; False, counted, if its weights must come in for it
        alone."""
        schedules = self._cache.schedules
        schedules.timesteps()
        if self._picture != schedules.pictures:
            self._picture, self._tried = schedules.pictures, []
        asked = [key for key in (*call.hits, *call.filled) if key.begin != missing.begin]
        is_made = False
        # A row behind another block would take a run of that block.
        if missing.begin not in self._tried and not any(_path(key.table, call.denoiser)[1] for key in asked):
            self._tried.append(missing.begin)
            try:
                is_made = self._fill(call, missing)
            except Exception:
                logger.debug("modulation cache: the coming steps are not known", exc_info=True)
            finally:
                NOW.call = call
        if not is_made:
            self._cache.bypass("unforeseen", missing.table.name)
        return is_made

    def _fill(self, call: Call, missing: Key) -> bool:
        args, kwargs = call.inputs or ((), {})
        bound = inspect.signature(type(call.denoiser).forward).bind(call.denoiser, *args, **kwargs)
        name = "timesteps" if "timesteps" in bound.arguments else "timestep"
        begins = {key.table: key.begin for key in self.order}
        chain = [key for key in self.order if key.begin == begins.get(missing.table)]
        timesteps = self._timesteps(bound.arguments.get(name)) if chain else []

        def find(tensors: list[torch.Tensor]) -> int:
            return [call.known.of(each) for each in tensors].index(missing.begin)

        calls = [Call(call.denoiser, call.number) for _ in timesteps]
        if not calls or (found := _run_to(_path(missing.table, call.denoiser)[0], calls[0], bound, find)) is None:
            return False
        place, index = found
        steps: list[dict[Table | None, torch.Tensor]] = []
        for each, timestep in zip(calls, timesteps, strict=True):
            bound.arguments[name] = timestep
            _, begin = _run_to([place], each, bound, operator.itemgetter(index))
            steps.append({None: begin})
            self._tried.append(each.known.of(begin))
        words = "omnireuse: modulation of a new schedule"
        for key in tqdm(chain, words, delay=1, leave=False, unit="layer", disable=self._cache.schedules.hides_bars):
            before = key.value.table if isinstance(key.value, Key) else None
            with self._cache.brought_in(key.table, missing.device):
                for NOW.call, outputs in zip(calls, steps, strict=True):
                    output = key.table.module(outputs[before])
                    outputs[key.table] = output[0] if key.table.tail else output
        for each in calls:
            call.filled += each.filled
            call.known.reads += each.known.reads
        return True

    def _timesteps(self, given: object) -> list[torch.Tensor]:
        """Those of all steps as the denoiser gets them; none if they cannot be told. Values of no schedule, as of what
        is not denoised, are the same at each step."""
        if not isinstance(given, torch.Tensor):
            return []
        values, places = given.unique(return_inverse=True)
        for ways in (self._ways, WAYS):  # several fit one step
            for schedules in self._cache.schedules.timesteps():
                steps = {way: [way(each.to(given.device), given.dtype) for each in schedules] for way in ways}
                if fit := {way: columns for way in ways if (columns := _columns(steps[way], values))}:
                    self._ways = (*fit,)
                    return [each[places] for each in torch.stack(fit[self._ways[0]], -1).unique(dim=0)]
        return []


def _columns(schedules: list[torch.Tensor], values: torch.Tensor) -> list[torch.Tensor]:
    """For each value, the schedule that it is of, or itself at each step; none if the largest is of no schedule, or if
    two are of the same, as in a batch whose requests are at different steps."""
    of = [next((each for each in schedules if (each == value).any()), None) for value in values]
    last, met = of[-1], [id(each) for each in of if each is not None]
    if last is None or len(met) > len({*met}):
        return []
    return [value.expand(len(last)) if each is None else each for value, each in zip(values, of, strict=True)]


def _path(table: Table, denoiser: nn.Module) -> tuple[list[nn.Module], bool]:
    """The modules on the way to that of a table, and whether one of them is a block."""
    path: list[nn.Module] = [denoiser]
    for part in table.name.split("."):
        path.append(getattr(path[-1], part))
    return path[1:], any(isinstance(each, nn.ModuleList) for each in path)


def _run_to(path: list[nn.Module], call: Call, bound: inspect.BoundArguments, find: Callable[[Any], Any]) -> Any:
    """Run the denoiser up to the first module of a path in whose small tensors something is found, or up to the last.

    Args:
        path: the modules to look at.
        call: that the run belongs to.
        bound: the denoiser's arguments.
        find: given the tensors; raises `ValueError` if it finds nothing.

    Returns:
        The module and what was found, or None.
    """

    def handler(module: nn.Module, made: MethodCall) -> Any:
        if NOW.call is call:  # not another thread
            try:
                raise _Reached((module, find([each for each in made.values if is_token_free(each)])))
            except ValueError:
                if module is path[-1]:
                    raise _Reached(None) from None
        return made.make()

    with ExitStack() as stack:
        for module in path:
            stack.callback(intercept(module, call, {"__call__": partial(handler, module)}).undo)
        NOW.call = call
        try:
            type(call.denoiser).forward(*bound.args, **bound.kwargs)
        except _Reached as reached:
            return reached.found
    return None
