"""The noise levels of a scheduler's steps, and its bounds on x0."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from omnireuse.noise.parametrization import NoiseLevel

__all__ = ["noise_levels"]

_FAMILIES = {
    # sample = (1 − σ) · clean + σ · noise, output = noise − clean.
    "flow": {
        "FlowMatchEulerDiscreteScheduler",
        "FlowMatchHeunDiscreteScheduler",
        "FlowMatchLCMScheduler",
        "FlowUniPCMultistepScheduler",  # of SGLang's Wan
    },
    # sample = clean + σ · noise, unscaled ("variance exploding"); sigmas[i] is the level of timesteps[i].
    "exploding": {
        "EulerDiscreteScheduler",
        "EulerAncestralDiscreteScheduler",
        "HeunDiscreteScheduler",
        "LMSDiscreteScheduler",
    },
    # sample = α · clean + σ · noise with both from the scheduler's own conversion of sigmas[i].
    "converting": {
        "DEISMultistepScheduler",
        "DPMSolverMultistepScheduler",
        "DPMSolverSinglestepScheduler",
        "SASolverScheduler",
        "UniPCMultistepScheduler",
    },
    # sample = √ᾱ · clean + √(1 − ᾱ) · noise ("variance preserving"), ᾱ looked up by timestep.
    "preserving": {
        "CogVideoXDDIMScheduler",
        "CogVideoXDPMScheduler",
        "DDIMParallelScheduler",
        "DDIMScheduler",
        "DDPMParallelScheduler",
        "DDPMScheduler",
        "LCMScheduler",
        "PNDMScheduler",
        "TCDScheduler",
        "UnCLIPScheduler",
    },
}
# Solvers without noise of their own that call the model once a step. LMS is of fourth order: what it takes from earlier
# steps is too much to leave out.
_ONE_CALL = {
    "CogVideoXDDIMScheduler",
    "DDIMParallelScheduler",
    "DDIMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "FlowUniPCMultistepScheduler",
    "UniPCMultistepScheduler",
}
# The one of them whose velocities do not stand in for x0 (`NoiseLevel.flow_scale`).
_X0_ONLY = {"DEISMultistepScheduler"}
# Those that bound x0 in their step, and whose model is called once a step.
_CLIPPING = {"DDIMParallelScheduler", "DDIMScheduler"}
_BOUNDING = _CLIPPING | _FAMILIES["converting"]


def noise_levels(scheduler: Any) -> list[NoiseLevel]:
    """The noise level of each of the scheduler's timesteps, in order.

    Cost: reads `timesteps` and `sigmas` once a run; if they are on an accelerator, that is one host synchronisation.
    """
    count = len(scheduler.timesteps)
    # By name along the inheritance chain, so that a user's subclass of a known scheduler is known too.
    names = {cls.__name__ for cls in type(scheduler).__mro__}
    family = next((family for family, members in _FAMILIES.items() if names & members), None)
    given: Any = getattr(scheduler, "sigmas", None)
    sigmas = [float(sigma) for sigma in given.tolist()] if hasattr(given, "tolist") else []
    if family is None:
        return [NoiseLevel(sigma=sigmas[i] if i < len(sigmas) else None, coordinate=float(i)) for i in range(count)]
    marginals = _marginals(family, scheduler, sigmas)
    prediction = "flow_prediction" if family == "flow" else scheduler.config.prediction_type
    if family == "exploding":
        levels = [_exploding_level(sigma, prediction) for _, sigma in marginals]
    else:
        owns = [sigma / alpha if alpha else None for alpha, sigma in marginals] if family == "preserving" else sigmas
        levels = [_level(*pair, prediction, own) for pair, own in zip(marginals, owns, strict=False)]
    if not _follows_the_path(scheduler):
        return levels
    found = _with_steps(levels, marginals, _end(family, scheduler))
    if _bounds_x0(names, scheduler.config):
        return [replace(level, flow_scale=None, is_bounded=True) for level in found]
    return [replace(level, flow_scale=None) for level in found] if names & _X0_ONLY else found


def _bounds_x0(names: Set[str], config: Any) -> bool:
    """True if the scheduler bounds x0 within its step. A model that predicts x0 gives it as its output."""
    if names.isdisjoint(_BOUNDING) or config.get("prediction_type") in ("sample", "original_sample"):
        return False
    return bool(config.get("thresholding") or (names & _CLIPPING and config.get("clip_sample")))


def _marginals(family: str, scheduler: Any, sigmas: Sequence[float]) -> list[tuple[float, float]]:
    """The weights of the clean sample and of the noise in the latents, at each step."""
    count = len(scheduler.timesteps)
    if family == "flow":
        return [(1 - sigma, sigma) for sigma in sigmas[:count]]
    if family == "exploding":
        return [(1.0, sigma) for sigma in sigmas[:count]]
    if family == "converting":
        pairs = [scheduler._sigma_to_alpha_sigma_t(sigma) for sigma in scheduler.sigmas[:count]]
        return [(float(alpha), float(sigma)) for alpha, sigma in pairs]
    kept = [float(scheduler.alphas_cumprod[int(timestep)]) for timestep in scheduler.timesteps.tolist()]
    return [(math.sqrt(k), math.sqrt(1 - k)) for k in kept]


def _end(family: str, scheduler: Any) -> tuple[float, float]:
    """The weights of the clean sample and of the noise after the last step."""
    if family == "preserving":
        kept = float(scheduler.final_alpha_cumprod)
        return math.sqrt(kept), math.sqrt(1 - kept)
    left = (
        float(scheduler.sigmas[len(scheduler.timesteps)]) if len(scheduler.sigmas) > len(scheduler.timesteps) else 0.0
    )
    if family == "converting":
        alpha, sigma = scheduler._sigma_to_alpha_sigma_t(torch.tensor(left))
        return float(alpha), float(sigma)
    return (1 - left if family == "flow" else 1.0), left


def _with_steps(
    levels: Sequence[NoiseLevel], marginals: Sequence[tuple[float, float]], end: tuple[float, float]
) -> list[NoiseLevel]:
    """Levels with `NoiseLevel.step`, for a solver that adds no noise and calls the model once a step.

    Args:
        levels: of each step.
        marginals: the weights of the clean sample and of the noise in the latents, at each step.
        end: the same after the last step.
    """
    return [
        replace(level, step=(to_alpha - to_sigma / sigma * alpha, to_sigma / sigma), flow_scale=1 / (alpha + sigma))
        if sigma
        else level
        for level, ((alpha, sigma), (to_alpha, to_sigma)) in zip(levels, pairwise([*marginals, end]), strict=True)
    ]


def _level(alpha: float, sigma: float, prediction: str, own: float | None) -> NoiseLevel:
    coordinate = sigma / (alpha + sigma) if alpha + sigma else 1.0
    weights: dict[str, tuple[float, float] | None] = {
        "epsilon": (1 / alpha, -sigma / alpha) if alpha else None,
        "v_prediction": (alpha, -sigma),
        "flow_prediction": (1.0, -sigma),
        "sample": (0.0, 1.0),
        "original_sample": (0.0, 1.0),
    }
    a, b = weights.get(prediction) or (None, None)
    return NoiseLevel(sigma=own, coordinate=coordinate, sample_weight=a, output_weight=b)


def _follows_the_path(scheduler: Any) -> bool:
    """True if it is one of `_ONE_CALL`, steps as its class does, and adds no noise."""
    named = [cls for cls in type(scheduler).__mro__ if cls.__name__ in _ONE_CALL]
    # A subclass may step in its own way.
    is_own_step = any(vars(cls).get("step") is type(scheduler).step for cls in named)
    algorithm = getattr(scheduler.config, "algorithm_type", "")
    return is_own_step and not getattr(scheduler.config, "stochastic_sampling", False) and "sde" not in algorithm


def _exploding_level(sigma: float, prediction: str) -> NoiseLevel:
    # The denoiser sees the sample shrunk to unit variance, and v is defined on that.
    shrink = 1 / math.sqrt(sigma * sigma + 1)
    level = _level(1.0, sigma, prediction, sigma)
    if prediction == "v_prediction":
        level = replace(level, sample_weight=shrink * shrink, output_weight=-sigma * shrink)
    return replace(level, input_scale=shrink)
