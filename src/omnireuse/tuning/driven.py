"""The region of a run that is measured, or made beside a measured one: a stepper decides each step."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from omnireuse.hooks.regions.step import kinds_of
from omnireuse.hooks.run import DenoiserCall, Region, Run
from omnireuse.loop.stepper import Stepper
from omnireuse.planning.path import copied

__all__ = ["DrivenRegion"]


class DrivenRegion(Region):
    """Asks a stepper at each step of a run. The run's events say that it is measured.

    Args:
        stepper: of the run.
        known: outputs of the denoisers at the first steps of an equal run, which stand in for calls that are left out.
            Later ones return the last output of their place, whose values are not used.
        inner: makes the calls, computes every one, and tells events of its own; None for a run under `FULL`.

    Attributes:
        coordinates: of the noise level of each step so far.
    """

    def __init__(
        self,
        stepper: Stepper,
        *,
        known: Sequence[Sequence[Any]] = (),
        inner: Region | None = None,
    ) -> None:
        self._stepper, self._known, self._inner = stepper, known, inner
        self._computes = True
        self._last: dict[int, Any] = {}
        self._kinds: dict[Hashable, int] = {}
        self.coordinates: list[float] = []

    def call(self, call: DenoiserCall) -> Any:
        """The computed output, or a forecast of it."""
        step, place = call.run.generation.index, call.run.calls - 1
        if not place:
            # Outputs are of another kind if a ControlNet or an adapter begins or ends, too.
            kind = self._kinds.setdefault((call.denoiser, call.layout.scales, call.controls), len(self._kinds))
            self._computes = self._stepper.computes(step, call.input, denoiser=kind)
        if not self._computes:
            if step < len(self._known) and place < len(self._known[step]):
                # Large recordings are on the host.
                device = next((tensor.device for tensor in call.tensors), None)
                self._last[place] = copied(self._known[step][place], device)
            if place in self._last:
                return self._last[place]
        output = self._last[place] = call.compute() if self._inner is None else self._inner.call(call)
        self._stepper.see(call.denoiser, output, kinds_of(call, output))
        return output

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """What the stepper gives the solver."""
        self.coordinates.append(run.generation.level.coordinate)
        if self._inner is None:
            run.generation.pass_by(replace(run.generation.decide(), reason="measuring"))
        used = self._stepper.use(output if self._computes else None, sample, run.given)
        assert used is not None, "a run that is measured always goes on"
        return used

    def stepped(self, run: Run, latents: torch.Tensor | None) -> None:
        """Tell the stepper."""
        self._stepper.arrived(latents)

    def undo(self) -> None:
        """Take back what the inner region put between objects."""
        if self._inner is not None:
            self._inner.undo()
