"""A sampler's use of the model's outputs, measured on runs with made-up outputs, which compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnireuse.engines.comfyui.noise import NEAR
from omnireuse.engines.comfyui.wrappers import POST, PREDICT, SAMPLER, Wrappers
from omnireuse.errors import UnsupportedModelError

__all__ = ["Response", "measured_response"]

_WAVES = 3
"""Elements whose outputs differ from zero at every step: a solver that is a weighted sum predicts them."""
_MISS = 1e-3


@dataclass(frozen=True)
class Response:
    """The dependence of a run's latents on its outputs d = (x − x0) / σ.

    Attributes:
        moved: (steps + 1, steps) how far an output of 1 at each step moves the latents before each step, and the last.
        sigmas: that the model is called at, one for each step.
    """

    moved: NDArray[np.float64]
    sigmas: tuple[float, ...]

    def aim(self, off: Sequence[torch.Tensor], full: torch.Tensor) -> torch.Tensor:
        """The output of a step with which it arrives at the latents of the full run.

        Args:
            off: by how much each output of the steps before differs from the full run's.
        """
        step = len(off)
        shares = self.moved[step + 1, :step] / self.moved[step + 1, step]
        moved = (float(share) * each for share, each in zip(shares, off, strict=True))
        return full - sum(moved, torch.zeros_like(full))


def measured_response(
    run: Callable[[Mapping[str, Wrappers]], object], sigmas: Sequence[float], *, own_functions: int
) -> Response:
    """The response of the sampler that `run` runs, with these wrappers on the model. It costs no call of the model.

    Latents have one element for each step, whose output is 1 there and 0 elsewhere.

    Args:
        sigmas: of the steps, and the one at which the run ends.
        own_functions: functions that the model itself has the parts of guidance given to.
    """
    steps = len(sigmas) - 1
    waves = torch.cos(torch.arange(1.0, steps + 1)[:, None] * torch.arange(1.0, _WAVES + 1))
    outputs = torch.cat([torch.eye(steps), waves], dim=1)
    moved = []
    for given in (torch.zeros_like(outputs), outputs):
        probe = _Probe(sigmas, given, own_functions)
        run({PREDICT: probe.predict, SAMPLER: probe.sample})
        if len(probe.latents) != steps + 1:
            raise UnsupportedModelError(f"it called the model {len(probe.latents) - 1} times in {steps} steps")
        moved.append(torch.stack(probe.latents).double())
    if moved[0].any():
        raise UnsupportedModelError("it adds noise on the way, which no output shows before")
    alone, together = moved[1].split([steps, _WAVES], dim=1)
    missed = (together - alone @ waves.double()).abs().max()
    if not missed <= _MISS * together.abs().max() or not (alone[1:].diagonal().abs() > 0).all():
        raise UnsupportedModelError("what it makes of the model's outputs is no weighted sum of them")
    return Response(alone.numpy(), tuple(sigmas[:-1]))


class _Probe:
    def __init__(self, sigmas: Sequence[float], outputs: torch.Tensor, own_functions: int) -> None:
        self._sigmas, self._outputs, self._own_functions = sigmas, outputs, own_functions
        self.latents: list[torch.Tensor] = []

    def _note(self, latents: torch.Tensor) -> None:
        self.latents.append(latents.flatten()[: self._outputs.shape[1]].cpu())

    def sample(
        self, executor: Any, model: Any, sigmas: Any, extra: Any, callback: Any, noise: Any, latent: Any, *rest: Any
    ) -> Any:
        """The solver's run, from latents of zero."""
        if noise.numel() < self._outputs.shape[1]:
            raise UnsupportedModelError(f"latents of {noise.numel()} elements are too small to measure it on")
        result = executor(model, sigmas, extra, None, torch.zeros_like(noise), torch.zeros_like(latent), *rest)
        self._note(result)
        return result

    def predict(self, executor: Any, x: torch.Tensor, timestep: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
        """A made-up x0."""
        sigma, step = float(timestep.flatten()[0]), len(self.latents)
        if step == len(self._outputs) or abs(sigma - self._sigmas[step]) > NEAR * sigma:
            raise UnsupportedModelError("it calls the model more than once a step, or at sigmas of its own")
        if len(options.get(POST, [])) > self._own_functions:
            raise UnsupportedModelError("it steps from a part of guidance (CFG++)")
        self._note(x)
        x0 = x.clone()
        x0.view(-1)[: self._outputs.shape[1]] -= sigma * self._outputs[step].to(x)
        return x0
