"""A full run that is recorded, while its block stack is watched for TeaCache and MagCache."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from omnireuse.calibration.mag_cache import MagnitudeRecorder
from omnireuse.errors import StateError, UnknownNameError, UnsupportedModelError
from omnireuse.hooks.denoisers import is_compiled_whole, model_name, unwrapped
from omnireuse.hooks.regions.blocks import BlocksRegion
from omnireuse.hooks.run import DenoiserCall, Region, Run
from omnireuse.loop.events import Decision
from omnireuse.loop.generation import Generation
from omnireuse.loop.strategy import Strategy
from omnireuse.models import block_stack_for
from omnireuse.noise.parametrization import Parametrization
from omnireuse.policies import Never
from omnireuse.tuning.recording import Recording

__all__ = ["NotFiniteError", "Observer", "Seen"]

logger = logging.getLogger("omnireuse")


class NotFiniteError(StateError):
    """What the scheduler was to be handed holds NaN or infinity.

    Args:
        step: the first such step, counted from 0.
        row: the first such row.
        rows: of the batch.
    """

    def __init__(self, step: int, row: int, rows: int) -> None:
        self.step, self.row, self.rows = step, row, rows
        super().__init__(f"step {step}: row {row} of {rows} is not finite after guidance")

    def __reduce__(self) -> tuple[object, ...]:
        return NotFiniteError, (self.step, self.row, self.rows)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one full run has shown; a batch counts as one.

    Attributes:
        coordinates: of its steps, as forecasters see them.
        target: what is remembered of outputs, "x0" after guidance or "output".
        pairs: for each step and branch the relative L1 change of the modulated input since the step before, and that of
            what the block stack adds.
        ratios: MagCache's for each branch and step; empty where they could not be measured.
        unmeasured: by name what could not be seen, and why.
    """

    coordinates: tuple[float, ...]
    target: str
    pairs: Sequence[tuple[float, float]] = ()
    ratios: tuple[tuple[float, ...], ...] = ()
    unmeasured: Mapping[str, str] = field(default_factory=dict)


class Observer(Recording):
    """Records a full run, and sees what the stack of blocks does in it.

    Args:
        denoisers, owner: as for a region.
        scheduler, total, keeps: as for a `Recording`.
    """

    def __init__(
        self, denoisers: Sequence[torch.nn.Module], owner: object, scheduler: Any, total: int, *, keeps: bool
    ) -> None:
        super().__init__(scheduler, total, keeps=keeps, is_bounded=False, calls_may_change=True)
        self._outputs = Parametrization("x0", is_required=False)
        self._coordinates, self._decisions = list[float](), list[Decision]()
        self._unmeasured: dict[str, str] = {}
        self._blocks: Region | None = None
        self._generation: Generation | None = None
        """Of the stack's decisions, which are all to compute; a generation of its own, whose events nobody counts."""
        try:
            self._watch_blocks(denoisers, owner)
        except (UnknownNameError, UnsupportedModelError) as error:
            logger.info("blocks are not measured: %s", error)
            self._unmeasured["blocks"] = str(error)

    def _watch_blocks(self, denoisers: Sequence[torch.nn.Module], owner: object) -> None:
        if len(denoisers) > 1:
            raise UnsupportedModelError("the pipeline has several denoisers, whose blocks would have to be kept apart")
        model = unwrapped(denoisers[0])
        stack = block_stack_for(model_name(model))
        if is_compiled_whole(denoisers[0]):
            raise UnsupportedModelError(f"{type(model).__name__} is compiled whole; compile its blocks instead")
        self._recorder = MagnitudeRecorder(num_streams=len(stack.streams), stream=stack.main_stream)
        self._strategy = Strategy(
            policy=Never(),
            forecaster=self._recorder,
            region="blocks",
            signal="modulated_input",
            measure_errors=True,
        )
        self._blocks = BlocksRegion(self._strategy, [(model, stack)], owner)

    def call(self, call: DenoiserCall) -> Any:
        """The computed output itself; the blocks are watched meanwhile."""
        blocks = self._blocks
        if blocks is None:
            return super().call(call)
        own = self._generation
        if own is None:
            own = self._generation = Generation(self._strategy, total=self.total, emit=self._decisions.append)
        watched = replace(call, run=Run(own))
        return super().call(replace(call, proceed=lambda *_, **__: blocks.call(watched)))

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The output itself.

        Raises:
            NotFiniteError: an output that is not finite.
        """
        finite = output.isfinite().reshape(len(output), -1).all(1)
        if not finite.all():
            raise NotFiniteError(run.generation.index, int((~finite).nonzero()[0]), len(finite))
        self._outputs.settle(run.generation.level, sample, output)
        self._coordinates.append(run.generation.level.coordinate)
        if self._generation is not None:
            self._generation.advance()
        return super().scheduler_step(run, output, sample)

    def seen(self) -> Seen:
        """What the run has shown.

        Raises:
            StateError: it had another number of steps.
        """
        if len(self._coordinates) != self.total:
            raise StateError(f"no run was recorded over all its {self.total} steps")
        pairs = [(each.drift, each.error) for each in self._decisions]
        calls = Counter(each.branch for each in self._decisions)
        ratios: tuple[tuple[float, ...], ...] = ()
        if missing := [branch for branch, count in calls.items() if count != self.total]:
            self._unmeasured["mag_cache"] = f"branch {missing[0]} was not called at every step"
            logger.info("mag_cache is not measured: %s", self._unmeasured["mag_cache"])
        elif calls and self.total > 1:
            ratios = self._recorder.ratios(len(calls))
        return Seen(
            coordinates=tuple(self._coordinates),
            target=self._outputs.target or "",
            pairs=[(drift, error) for drift, error in pairs if drift is not None and error is not None],
            ratios=ratios,
            unmeasured=self._unmeasured,
        )

    def undo(self) -> None:
        """Take the handlers off the blocks."""
        if self._blocks is not None:
            self._blocks.undo()
