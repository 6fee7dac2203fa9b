"""What tuning needs of a full run: its path, the inner products of its outputs, its final latents."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse.errors import StateError, UnsupportedModelError
from omnireuse.planning.path import OutputProducts, Path, branches_of
from omnireuse.planning.solver import Arithmetic, next_latents
from omnireuse.tuning.recording import Recording

__all__ = ["FullRun", "decibels", "relative_errors"]


@dataclass(frozen=True, kw_only=True)
class FullRun:
    """One measured call.

    Attributes:
        path: latents before the first and after each step; the calls of the first half of the steps.
        products: of the outputs.
        calls: how many calls of the denoisers a step has at most.
        unfit: why no weights can be fitted; None if they can.
    """

    path: Path
    products: OutputProducts
    calls: int
    unfit: str | None = None

    @property
    def final(self) -> torch.Tensor:
        """The final latents, one row for each picture."""
        return self.path.latents[-1]

    @property
    def pictures(self) -> int:
        """How many pictures the call has made."""
        return len(self.final)

    def ends_with(self, step: int) -> bool:
        """Whether this is the last step."""
        return step + 2 == len(self.path.latents)

    @classmethod
    def of(cls, recording: Recording) -> FullRun:
        """From a recording, whose values are taken over. Random states stay as they are.

        Raises:
            StateError: the run ended before its last step, or the final latents are not finite.
            NotTunableError: its values could not be kept, and neither could those of other runs like it.
            UnsupportedModelError: it is not known what the scheduler's steps make of their outputs.
            Exception: the error that ended the recording.
        """
        if recording.failure is not None:
            raise recording.failure
        steps = recording.steps
        final = steps[-1].latents if recording.is_whole else None
        if final is None:
            raise StateError("a run ended before its last step")
        if not final.isfinite().all():
            raise StateError("the final latents are not finite")
        assert steps[0].sample is not None
        with torch.random.fork_rng(devices=_devices(final)):
            unfit = _unfit(recording)
            effects = _effects(recording, final)
        if not np.isfinite(effects).all():
            raise UnsupportedModelError(f"{type(recording.scheduler).__name__}: its steps have no finite effects")
        outputs = [(each.output, branches_of(each.calls, each.output)) for each in steps if each.output is not None]
        products, shares = OutputProducts.of(outputs, final, effects)
        known = steps[: len(steps) // 2]  # trial runs need not compute them
        path = Path(
            latents=[steps[0].sample, *(each.latents for each in steps if each.latents is not None)],
            shares=shares,
            calls=[[output for _, output in step.calls] for step in known],
            outputs=[step.output for step in known if step.output is not None],
        )
        recording.steps = []
        return cls(path=path, products=products, calls=max(len(step.calls) for step in steps), unfit=unfit)


def _unfit(recording: Recording) -> str | None:
    """Why no weights can be fitted, by the first, the middle and the last step; None if they can."""
    if len(recording.kinds) > 1:
        # Whoever follows a plan computes the first step of each kind, and remembers nothing from before it.
        return "the outputs are of other kinds on the way: a condition changed, or a ControlNet or an adapter begins"
    twin, last = copy.deepcopy(recording.scheduler), len(recording.steps) - 1
    for number, step in enumerate(recording.steps):
        given = step.arguments(step.output, step.sample)
        if number in (0, last // 2, last):
            try:
                Arithmetic.of(twin, given)
            except UnsupportedModelError as error:
                return str(error)
        twin.step(**given)
    return None


def _unbounded(scheduler: Any) -> Any:
    """A copy of a scheduler, which does not bound x0 in its steps."""
    twin = copy.deepcopy(scheduler)
    config = getattr(twin, "config", {})
    bounds = {name: False for name in ("clip_sample", "thresholding") if config.get(name)}
    if bounds:
        twin.register_to_config(**bounds)
    return twin


def _effects(recording: Recording, like: torch.Tensor) -> NDArray[np.float64]:
    """How far an output of 1 at each step moves the final latents, with all other outputs unchanged; what multistep
    solvers make of it at later steps counts too, and bounds of x0 do not. One row of a batch for each step."""
    total = len(recording.steps)
    moved, still = (torch.zeros(total, *(1,) * (like.ndim - 1), device=like.device) for _ in range(2))
    impulses, zeros = torch.eye(total, device=like.device).view(total, *moved.shape), torch.zeros_like(moved)
    twins = _unbounded(recording.scheduler), _unbounded(recording.scheduler)
    for number, step in enumerate(recording.steps):
        # The same noise for both, if the solver adds some.
        with torch.random.fork_rng(devices=_devices(like)):
            moved = next_latents(twins[0].step(**step.arguments(impulses[number], moved)))
        still = next_latents(twins[1].step(**step.arguments(zeros, still)))
    return (moved - still).double().flatten(1).mean(1).cpu().numpy()


def relative_errors(latents: torch.Tensor, full: torch.Tensor) -> list[float]:
    """Relative L1 error of each row; infinite if it is not finite."""
    given, true = (each.to("cpu", torch.float64).flatten(1) for each in (latents, full))
    errors = (given - true).abs().sum(1) / true.abs().sum(1).clamp_min(1e-30)
    return [float(each) for each in torch.nan_to_num(errors, nan=float("inf"), posinf=float("inf"))]


def decibels(latents: torch.Tensor, full: torch.Tensor) -> list[float]:
    """PSNR of each row of latents in dB, at a range of six times their root mean square; at most 100, at least 0."""
    given, true = (each.to("cpu", torch.float64).flatten(1) for each in (latents, full))
    ratio = 36 * true.square().mean(1) / (given - true).square().mean(1).clamp_min(1e-30)
    return [min(max(float(each), 0.0), 100.0) for each in torch.nan_to_num(10 * ratio.log10(), nan=0.0, neginf=0.0)]


def _devices(tensor: torch.Tensor) -> list[Any]:
    return [tensor.device] if tensor.device.type == "cuda" else []
