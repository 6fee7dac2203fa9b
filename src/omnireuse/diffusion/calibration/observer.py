"""Observation of full runs: how every signal changes from step to step, and what the blocks add."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omnireuse.diffusion.adapters import BlockStack, block_stack_for
from omnireuse.diffusion.calibration.distances import Distances
from omnireuse.diffusion.calibration.mag_cache import magnitude_ratio
from omnireuse.diffusion.reuse.runtime.denoisers import is_compiled_whole, model_name, unwrapped
from omnireuse.diffusion.reuse.runtime.interception import Interception, intercept
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall
from omnireuse.diffusion.reuse.runtime.regions.stack import Block
from omnireuse.diffusion.reuse.runtime.regions.step import StepRegion
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.signals import change_of, filtered, grid_of, magnitude
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import StateError, UnknownNameError, UnsupportedModelError

__all__ = ["NotFiniteError", "Observations", "Series"]

logger = logging.getLogger("omnireuse")

Series = dict[tuple[str, str], dict[int, float]]
"""By name and branch: a figure for each step that has one."""


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


@dataclass(kw_only=True)
class Observations:
    """What was seen of full runs; a batch counts as one run. Only one step's tensors are kept, whatever the number of
    runs.

    Attributes:
        runs: of each run the relative L1 changes since the step before of "latents", "filtered_latents", "remembered"
            (x0 after guidance, or the output), "modulated_input", "first_residual" and "residual" (what the whole stack
            adds; relative to the new value, all streams together), and the ratio of the "magnitude" of that residual.
        unmeasured: by name what could not be seen, and why.
        quantity: what "remembered" is; None before the first run.
        keeps_values: whether to keep the values of one run at a time, for `take_distances`.
    """

    runs: list[Series] = field(default_factory=list)
    unmeasured: dict[str, str] = field(default_factory=dict)
    quantity: str | None = None
    keeps_values: bool = False
    _run: tuple[list[float], list[torch.Tensor]] = field(default_factory=lambda: ([], []))
    _distances: list[Distances] = field(default_factory=list)

    def region(self, strategy: Strategy, denoisers: Sequence[torch.nn.Module], owner: object) -> StepRegion:
        """Region "step" that observes, for a `Handle`."""
        return _Observer(self, strategy, denoisers, owner)

    def begin_run(self) -> None:
        """A run begins."""
        self.runs.append({})
        self._end_run()

    def _end_run(self) -> None:
        coordinates, values = self._run
        if values:
            self._distances.append(Distances.between(coordinates, values))
        self._run = [], []

    def note_value(self, coordinate: float, value: torch.Tensor) -> None:
        """Keep the value of a step."""
        if self.keeps_values:
            self._run[0].append(coordinate)
            self._run[1].append(value)

    def take_distances(self, steps: int) -> Distances:
        """The distances between the values of all runs of so many steps.

        Raises:
            StateError: no run was observed from its first to its last step.
        """
        self._end_run()
        whole, self._distances = [each for each in self._distances if len(each.coordinates) == steps], []
        if not whole:
            raise StateError(f"no run was recorded over all its {steps} steps")
        return Distances.joined(whole)


class _Observer(StepRegion):
    def __init__(
        self,
        seen: Observations,
        strategy: Strategy,
        denoisers: Sequence[torch.nn.Module],
        owner: object,
    ) -> None:
        super().__init__(strategy)
        self._seen = seen
        self._run: Run | None = None
        self._call: DenoiserCall | None = None
        self._before: dict[tuple[str, str], Any] = {}
        self._entry: list[torch.Tensor] = []
        self._interceptions: list[Interception] = []
        try:
            self._watch_blocks(denoisers, owner)
        except (UnknownNameError, UnsupportedModelError) as error:
            self.undo()
            self._cannot("blocks", str(error))
        except BaseException:
            self.undo()
            raise

    def _cannot(self, what: str, why: str) -> None:
        if what not in self._seen.unmeasured:
            logger.info("%s are not measured: %s", what, why)
            self._seen.unmeasured[what] = why

    def _watch_blocks(self, denoisers: Sequence[torch.nn.Module], owner: object) -> None:
        if len(denoisers) > 1:
            raise UnsupportedModelError("the pipeline has several denoisers, whose blocks would have to be kept apart")
        model = unwrapped(denoisers[0])
        stack = block_stack_for(model_name(model))
        if is_compiled_whole(denoisers[0]):
            raise UnsupportedModelError(f"{type(model).__name__} is compiled whole; compile its blocks instead")
        blocks = stack.blocks_of(model)
        # Blocks that only feed others (the control blocks of VACE) say nothing of what the model sees.
        plain = next(block for block in blocks if block.bypass is None)
        for block in {id(each): each for each in (blocks[0], plain, blocks[-1])}.values():
            handler = self._handler(block, stack, block is blocks[0], block is plain, block is blocks[-1])
            self._interceptions.append(intercept(block.module, owner, {"__call__": handler}))

    def _handler(
        self, block: Block, stack: BlockStack, enters: bool, is_plain: bool, leaves: bool
    ) -> Callable[..., Any]:
        def handler(proceed: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            call = self._call
            if call is None:
                return proceed(*args, **kwargs)
            arguments = block.arguments(args, kwargs)
            # Copied, because blocks may write in place.
            start = [stream.clone() for stream in block.entering(arguments)] if enters or is_plain else []
            if enters:
                self._entry = start
                self._changed("modulated_input", call.branch, call.run, stack.signal(block.module, arguments))
            result = proceed(*args, **kwargs)
            if is_plain:
                # A stack that is joined from its first block on has one stream.
                main = stack.main_stream if len(start) > 1 else 0
                after = block.leaving(result, start)[main]
                assert after is not None, "the main stream goes through every block"
                self._changed("first_residual", call.branch, call.run, after - start[main])
            if leaves:
                self._leave(call, stack, block.leaving(result, self._entry))
            return result

        return handler

    def _leave(self, call: DenoiserCall, stack: BlockStack, streams: Sequence[torch.Tensor | None]) -> None:
        added = [None if after is None else after - before for after, before in zip(streams, self._entry, strict=True)]
        self._entry = []
        before = self._before.get(("residual", call.branch))
        self._before["residual", call.branch] = added
        if before is None:
            return
        pairs = [(now, old) for now, old in zip(added, before, strict=True) if now is not None and old is not None]
        if any(now.shape != old.shape for now, old in pairs):
            return
        size = float(magnitude(*(now for now, _ in pairs)))
        if size:
            off = float(magnitude(*(now.float() - old.float() for now, old in pairs)))
            self._note("residual", call.branch, call.run, off / size)
        now, old = (streams[stack.main_stream if len(added) > 1 else 0] for streams in (added, before))
        if now is not None and old is not None:
            self._note("magnitude", call.branch, call.run, magnitude_ratio(now, old))

    def _changed(self, name: str, branch: str, run: Run, now: torch.Tensor) -> None:
        before = self._before.get((name, branch))
        self._before[name, branch] = now.detach().clone()
        if before is not None and before.shape == now.shape:
            off, size = change_of(now, before).tolist()
            if size:
                self._note(name, branch, run, off / size)

    def _note(self, name: str, branch: str, run: Run, value: float) -> None:
        self._seen.runs[-1].setdefault((name, branch), {})[run.generation.index] = value

    def call(self, call: DenoiserCall) -> Any:
        """As region "step"; the blocks are watched meanwhile."""
        if call.run is not self._run:
            self._run = call.run
            self._before.clear()
            self._seen.begin_run()
        if not self.has_begun(call.run) and call.input is not None:
            self._changed("latents", "step", call.run, call.input)
            self._follow_filtered(call)
        self._call = call
        try:
            return super().call(call)
        finally:
            self._call = None

    def _follow_filtered(self, call: DenoiserCall) -> None:
        if "filtered latents" in self._seen.unmeasured or call.input is None:
            return
        try:
            seen = filtered(call.input, call.run.generation.level, grid_of(call.input, call.kwargs))
        except UnsupportedModelError as error:
            self._cannot("filtered latents", str(error))
        else:
            self._changed("filtered_latents", "step", call.run, seen)

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """As region "step".

        Raises:
            NotFiniteError: an output that is not finite.
        """
        finite = output.isfinite().reshape(len(output), -1).all(1)
        if not finite.all():
            raise NotFiniteError(run.generation.index, int((~finite).nonzero()[0]), len(finite))
        output = super().scheduler_step(run, output, sample)
        outputs = run.generation.outputs
        value = outputs.value(run.generation.level, sample, output)
        if value is not None:
            self._changed("remembered", "step", run, value)
            self._seen.note_value(run.generation.coordinate, value)
        self._seen.quantity = self._seen.quantity or outputs.quantity
        if run.generation.total is not None and run.generation.index >= run.generation.total - 1:
            self._before.clear()
        return output

    def undo(self) -> None:
        """Take the handlers off the blocks."""
        for interception in self._interceptions:
            interception.undo()
        self._interceptions.clear()
