"""What tuning needs of a full run: its path, the inner products of its outputs, its final latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.calibration.branches import BranchOutputs, Shares
from omnireuse.diffusion.calibration.path import OutputProducts, Path
from omnireuse.diffusion.calibration.solver import Arithmetic
from omnireuse.diffusion.tuning.recording import Recording

__all__ = ["FullRun", "relative_errors", "replayed_steps"]


def replayed_steps(total: int) -> int:
    """How many first steps of a full run of `total` steps are kept, so that shadows need not compute them."""
    return total // 2


@dataclass(frozen=True, kw_only=True)
class FullRun:
    """One measured call.

    Attributes:
        path: latents before the first and after each step; the calls of the first half of the steps.
        products: of the outputs.
        calls: how many calls of the denoisers a step has.
    """

    path: Path
    products: OutputProducts
    calls: int

    @property
    def final(self) -> torch.Tensor:
        """The final latents, one row for each picture."""
        return self.path.latents[-1]

    @property
    def pictures(self) -> int:
        """How many pictures the call has made."""
        return len(self.final)

    @classmethod
    def of(cls, recording: Recording) -> FullRun:
        """From a whole recording, whose values are taken over. Random states stay as they are.

        Raises:
            UnsupportedModelError: no weights can be fitted for the scheduler.
            ArithmeticError: the final latents are not finite.
        """
        steps = recording.steps
        final = steps[-1].latents
        assert final is not None, "the recording is whole"
        if not final.isfinite().all():
            raise ArithmeticError("the final latents are not finite")
        path, shares, factors, carried = Path(), Shares(), [], []
        handed: list[torch.Tensor] = []
        by_branch: list[list[torch.Tensor] | None] = []
        twin = recording.scheduler
        with torch.random.fork_rng(devices=_devices(final)):
            for step in steps:
                assert step.output is not None
                outputs = BranchOutputs()
                for place, output in step.calls:
                    outputs.note(place, output)
                made = outputs.take(step.output)
                shares.see(made, step.output)
                given = {**_with_own_generators(step.given), "model_output": step.output, "sample": step.sample}
                arithmetic = Arithmetic.of(twin, given)
                factors.append(arithmetic.factor)
                carried.append(arithmetic.carried)
                twin.step(**given)
                handed.append(step.output.float().cpu())
                by_branch.append(None if made is None else [each.float().cpu() for each in made])
        assert steps[0].sample is not None
        path.latents = [steps[0].sample, *(each.latents for each in steps if each.latents is not None)]
        path.calls = [[output for _, output in step.calls] for step in steps[: replayed_steps(len(steps))]]
        later = np.cumprod([1.0, *reversed(carried[1:])])[::-1]
        path.keep(shares, handed, by_branch, np.array(factors) * later)
        products = path.take_products()
        assert products is not None, "the path has latents"
        recording.steps = []
        return cls(path=path, products=products, calls=len(steps[0].calls))


def relative_errors(latents: torch.Tensor, full: torch.Tensor) -> list[float]:
    """Relative L1 error of each row; infinite where it is not finite."""
    given, true = (each.to("cpu", torch.float64).flatten(1) for each in (latents, full))
    errors = (given - true).abs().sum(1) / true.abs().sum(1).clamp_min(1e-30)
    return [float(each) for each in torch.nan_to_num(errors, nan=float("inf"), posinf=float("inf"))]


def _devices(tensor: torch.Tensor) -> list[Any]:
    return [tensor.device] if tensor.device.type == "cuda" else []


def _with_own_generators(given: Any) -> Any:
    """The arguments with copies of their generators."""

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Generator):
            return leaf
        twin = torch.Generator(leaf.device)
        twin.set_state(leaf.get_state())
        return twin

    return pytree.tree_map(own, dict(given))
