"""What decides the steps of a trial run: it follows another stepper, fits weights, or decodes known latents."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

from omnireuse.errors import StateError
from omnireuse.loop.stepper import NOTHING, Stepper
from omnireuse.planning.fit import WeightFit
from omnireuse.planning.path import branches_of, copied
from omnireuse.planning.solver import Arithmetic
from omnireuse.tuning.full_run import FullRun
from omnireuse.tuning.pulse import Pulse

__all__ = ["DecodeStepper", "FitStepper", "TrialStepper"]


class TrialStepper(Stepper):
    """Follows another stepper beside a full run, whose first steps are not computed again.

    Args:
        full: the full run.
        first_reused: the first step that the other one does not compute. From there on the latents are not those of the
            full run.
        inner: the other one.
        pulse: asked before each step whether to go on; None if nobody can stop the run.

    Attributes:
        computed: calls of the model that were made, by the branches of guidance that the host sees.
        latents: a copy of the final ones; None before the last step is done, and from hosts that do not tell them.
    """

    def __init__(self, full: FullRun, first_reused: int, inner: Stepper, pulse: Pulse | None = None) -> None:
        self._full, self._inner, self._pulse = full, inner, pulse
        self._first_unknown = min(first_reused, len(full.path.calls))
        self._known: int | None = None
        """The step, if its output is due and known."""
        self._step = self._seen = self.computed = 0
        self.latents: torch.Tensor | None = None

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        if self._pulse is not None:
            self._pulse.step()
        is_due = self._inner.computes(step, latents, kind=kind)
        self._step, self._seen = step, 0
        self._known = step if is_due and step < self._first_unknown else None
        return is_due and self._known is None

    def see(self, denoiser: int, output: object, kinds: int = 1) -> None:
        self._seen += 1
        if self._seen > self._full.calls:
            raise StateError("a trial run has more calls of the denoiser in a step than the full run")
        self._inner.see(denoiser, output, kinds)

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor | None:
        start = self._full.path.latents[0].to(latents.device)
        if not self._step and not (start.shape == latents.shape and torch.equal(start, latents)):
            raise StateError("a run with the same arguments begins with other latents")
        if output is not None:
            self.computed += self._seen or 1
            if self._pulse is not None:
                self._pulse.computed()
        elif self._known is not None:
            for each in self._full.path.calls[self._known]:
                self._inner.see(0, copied(each, latents.device))
            output = copied(self._full.path.outputs[self._known], latents.device)
        return self._inner.use(output, latents, given)

    def known(self, call: int, device: torch.device | None) -> Any:
        calls = self._full.path.calls
        is_known = self._step < len(calls) and call < len(calls[self._step])
        # Large recordings are on the host.
        return copied(calls[self._step][call], device) if is_known else None

    def arrived(self, latents: torch.Tensor | None) -> None:
        self._inner.arrived(latents)
        if latents is not None and self._full.ends_with(self._step):
            self.latents = latents.detach().clone()


class FitStepper(Stepper):
    """Fits weights for a schedule, and follows them along the path of the full run.

    Args:
        fit: takes what is learnt.
        full: the full run.
        scheduler: of this run.
    """

    def __init__(self, fit: WeightFit, full: FullRun, scheduler: object) -> None:
        self._run, self._path, self._scheduler = fit.begin(full.path.shares), full.path, scheduler
        self._made = list[tuple[int, Any]]()
        self._last = torch.zeros(())
        """The last computed output, for its shape."""

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        return self._run.computes

    def see(self, denoiser: int, output: object, kinds: int = 1) -> None:
        self._made.append((denoiser, copied(output)))

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        if output is not None:
            self._last = output
        like, after = self._last, self._path.latents[self._run.index + 1].to(latents.device)
        step = {**given, "model_output": like, "sample": latents}
        made, self._made = branches_of(self._made, like), []
        used = self._run.step(made, like, lambda: Arithmetic.of(self._scheduler, step).output_to(after))
        return used.to(like.dtype)


class DecodeStepper(Stepper):
    """Computes nothing, and ends in the latents of the full run, whatever its outputs."""

    def __init__(self, full: FullRun) -> None:
        self._full, self._step = full, 0

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: Hashable = 0) -> bool:
        self._step = step
        return False

    def use(
        self, output: torch.Tensor | None, latents: torch.Tensor, given: Mapping[str, Any] = NOTHING
    ) -> torch.Tensor:
        found: torch.Tensor = copied(self._full.path.outputs[0], latents.device)
        return found

    def arrived(self, latents: torch.Tensor | None) -> None:
        if latents is not None and self._full.ends_with(self._step):
            latents.copy_(self._full.final)
