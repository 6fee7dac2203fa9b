"""The noise levels of one run of a ComfyUI sampler, and the step that a call of the model belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from omnireuse.noise.parametrization import NoiseLevel

__all__ = ["NEAR", "RunNoise"]

NEAR = 1e-5
"""Relative difference of two sigmas that count as one."""

_X0_ONLY = {"deis", "res_multistep"}
_ONE_CALL = {*_X0_ONLY, "dpmpp_2m", "euler", "gradient_estimation", "unipc", "unipc_bh2"}
"""Functions of samplers that add no noise, call the model once a step, and are of third order at most. Under the first,
velocities do not stand in for x0."""


class RunNoise:
    """Noise by step and by sigma.

    The model gives x0 at each call. Remembered is x0 itself, or the derivative d = (x − x0) / σ that k-diffusion's
    solvers follow (Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models"): the noise where
    latents are clean + σ · noise, the velocity where they are (1 − σ) · clean + σ · noise.

    Args:
        sigmas: of the steps, and the one at which the run ends: at least two.
        model_sampling: ComfyUI's, which says how latents are made noisy.
        derivative: whether outputs are derivatives rather than x0.
        sampler: name of the sampler's function; "" if steps need not be known.
    """

    def __init__(self, sigmas: Sequence[float], model_sampling: Any, *, derivative: bool, sampler: str = "") -> None:
        self.sigmas, self._end = tuple(sigmas[:-1]), sigmas[-1]
        self._model_sampling, self._derivative, self._is_one_call = model_sampling, derivative, sampler in _ONE_CALL
        self._has_velocities = sampler in _ONE_CALL - _X0_ONLY
        shares = self._shares(self.sigmas)
        self._is_known = all(a > b for a, b in pairwise(shares))
        self.levels = tuple(
            self._level(sigma, share, step) for step, (sigma, share) in enumerate(zip(self.sigmas, shares, strict=True))
        )
        """The noise level of each step."""

    @property
    def falls(self) -> bool:
        """Whether no step has more noise than the one before."""
        return all(a >= b for a, b in pairwise((*self.sigmas, self._end)))

    def step_of(self, sigma: float) -> int:
        """The last step that begins at this sigma or above: solvers also call the model between two steps."""
        return max(sum(each >= sigma * (1 - NEAR) for each in self.sigmas) - 1, 0)

    def level_at(self, sigma: float) -> NoiseLevel:
        """The noise level at any sigma."""
        step = self.step_of(sigma)
        if abs(self.sigmas[step] - sigma) <= NEAR * sigma:
            return self.levels[step]
        return self._level(sigma, self._shares([sigma])[0], step)

    def _level(self, sigma: float, share: float, step: int) -> NoiseLevel:
        if not self._is_known:
            ends = (*self.sigmas, self._end)
            width = ends[step] - ends[step + 1]
            return NoiseLevel(sigma=sigma, coordinate=step + ((ends[step] - sigma) / width if width else 0.0))
        weights = (1.0, -sigma) if self._derivative else (0.0, 1.0)
        after = (*self.sigmas, self._end)[step + 1] / sigma if sigma else 0.0
        return NoiseLevel(
            sigma=sigma,
            coordinate=share,
            sample_weight=weights[0],
            output_weight=weights[1],
            step=(1 - after, after) if self._is_one_call else None,
            flow_scale=share / sigma if self._has_velocities and sigma else None,
        )

    def _shares(self, sigmas: Sequence[float]) -> list[float]:
        """Noise fraction in the latents, σ/(α+σ), from ComfyUI's scaling of pure noise and of a clean picture."""
        levels = torch.tensor(sigmas, dtype=torch.float64)
        one = torch.ones(len(levels), 1, dtype=torch.float64)
        noise = self._model_sampling.noise_scaling(levels, one.clone(), torch.zeros_like(one)).flatten()
        clean = self._model_sampling.noise_scaling(levels, torch.zeros_like(one), one.clone()).flatten()
        found: list[float] = (noise / (clean + noise)).tolist()
        return found
