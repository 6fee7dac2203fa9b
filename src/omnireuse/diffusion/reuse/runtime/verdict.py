"""One decision from its opening to its event; the region in between does what was decided."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import perf_counter

import torch

from omnireuse.diffusion.reuse.events import Decision
from omnireuse.diffusion.reuse.runtime.gradients import CUT
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.errors import StateError

__all__ = ["Verdict", "magnitude", "magnitudes"]


Scales = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""Gives the mean magnitudes of the output and of x0, in the units of what is remembered."""


class Verdict:
    """A decision that was taken and is being carried out.

    Args:
        run: the generation it belongs to.
        key: names the track in the run: number of the denoiser and branch, or the one name of a whole step.
        branch: as the event will show it.
        order: of the call among the step's calls of its denoiser.
        signal: the tensor to be watched, or None.
        layout: what must equal the remembered layout for a reuse to be possible.
        veto: a reason to compute whatever the policy says, or None.
        sample: row of the batch that is decided on, with a track of its own; None for all of them together.
    """

    def __init__(
        self,
        run: Run,
        key: tuple[int, str] | str,
        branch: str,
        order: int,
        signal: torch.Tensor | None,
        layout: Hashable,
        veto: str | None = None,
        sample: int | None = None,
    ) -> None:
        started = perf_counter()
        self.run, self.branch, self.sample = run, branch, sample
        self.track = run.track((key, sample), order)
        lead = run.lead_of(key, sample)
        self.drift = self.track.drift_to(signal if lead is None else None)
        self.view = run.view(order, self.drift, self.track.error)
        self.reuse, self.reason = self.track.decide(self.view, layout, lead)
        if self.reuse and veto is not None:
            self.reuse, self.reason = False, veto
        run.lead(key, sample, self.reuse)
        self.error: float | None = None
        self.corrected = False
        """Whether something else is handed on than what this step computed."""
        self.host_seconds = perf_counter() - started

    def foretell(self) -> list[torch.Tensor]:
        """What stands in for the values that will not be computed; read-only."""
        values = self.track.predict(self.run.at)
        assert values is not None, "a reuse is decided only when primed"
        return values

    def learn(self, values: Sequence[torch.Tensor], scales: Scales, measure: bool) -> None:
        """Remember computed values, and first compare the forecast for them with the truth.

        Args:
            values: what was computed; the track keeps the tensors.
            scales: gives what the event's error and the policy's are relative to; called only where it is measured.
            measure: whether to measure, which reads the error back to the host.
        """
        if torch.is_grad_enabled() and any(value.requires_grad for value in values):
            raise StateError(CUT)
        at = self.run.at
        expected = self.track.predict(at) if measure else None
        if expected is not None and all(e.shape == v.shape for e, v in zip(expected, values, strict=False)):
            of_output, of_x0 = scales()
            off = magnitude(*(e.float() - v.float() for e, v in zip(expected, values, strict=True)))
            self.error = relative(off, of_output)
            self.track.judge(off, of_x0, sum(value.numel() for value in values))
        self.track.observe(at, values)

    def correct(self) -> list[torch.Tensor] | None:
        """What is handed on in place of the values just learnt; None for these values themselves."""
        values = self.track.corrected(self.run.at)
        self.corrected = values is not None
        return values

    def conclude(self) -> Decision:
        """Tell the policy, and describe what happened."""
        self.track.settle(self.view, self.reuse)
        return Decision(
            run=self.run.number,
            step=self.view.index,
            total=self.view.total,
            branch=self.branch,
            sample=self.sample,
            reused=self.reuse,
            corrected=self.corrected,
            reason=self.reason,
            sigma=self.view.sigma,
            noise=self.view.noise,
            drift=self.drift,
            error=self.error,
            host_seconds=self.host_seconds,
        )


def magnitude(*values: torch.Tensor) -> torch.Tensor:
    """Mean absolute value over all elements of all tensors, a float32 scalar on their device."""
    total = torch.stack([value.float().abs().sum() for value in values]).sum()
    return total / max(sum(value.numel() for value in values), 1)


def relative(off: torch.Tensor, size: torch.Tensor) -> float | None:
    """off / size; None where nothing gives a scale."""
    numerator, denominator = torch.stack((off, size)).tolist()
    return numerator / denominator if denominator else None


def magnitudes(values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The magnitude of values that errors are relative to, for event and policy alike."""
    size = magnitude(*values)
    return size, size
