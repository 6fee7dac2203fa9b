"""Where a scheduler stands: its noise levels, and the algebra between model output and denoised sample.

Every prediction type is linear: x0 = a · sample + b · output with scalars a and b that follow from the noise level. A
model joins through this line of algebra; nothing of it is copied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["SAME_NOISE", "NoiseLevel", "noise_levels"]

SAME_NOISE = 1e-3
"""Shares of noise that are as close as this are taken for the same."""

# sample = clean + σ · noise, unscaled ("variance exploding"), sigmas[i] is the level of timesteps[i].
_EXPLODING = {
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "HeunDiscreteScheduler",
    "LMSDiscreteScheduler",
}
# sample = √ᾱ · clean + √(1 − ᾱ) · noise ("variance preserving"), ᾱ looked up by timestep.
_PRESERVING = {
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
}
# sample = α · clean + σ · noise with both from the scheduler's own conversion of sigmas[i].
_CONVERTING = {
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "SASolverScheduler",
    "UniPCMultistepScheduler",
}
# sample = (1 − σ) · clean + σ · noise, output = noise − clean.
_FLOW = {"FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler", "FlowMatchLCMScheduler"}


@dataclass(frozen=True, kw_only=True)
class NoiseLevel:
    """One step of a schedule.

    Attributes:
        sigma: the noise level in the scheduler's own scale; None where it has none.
        coordinate: what forecasters measure distance in: σ/(α+σ), in [0, 1] for every parametrisation and
            equal to σ for flow matching; the step index where the scheduler's noise is unknown.
        sample_weight: a of x0 = a · sample + b · output; None where the algebra is unknown.
        output_weight: b of the same; never 0 where `sample_weight` is known, except at zero noise.
        input_scale: what the scheduler multiplies the sample with before the denoiser sees it.
    """

    sigma: float | None
    coordinate: float
    sample_weight: float | None = None
    output_weight: float | None = None
    input_scale: float = 1.0


def noise_levels(scheduler: Any) -> list[NoiseLevel]:
    """The noise level of each of the scheduler's timesteps, in order.

    Cost: reads `timesteps` and `sigmas` once a run; where they are on an accelerator, that is one host synchronisation.
    """
    count = len(scheduler.timesteps)
    family = _family(scheduler)
    if family == "flow":
        return [_level(1 - s, s, "flow_prediction", s) for s in _sigmas(scheduler)[:count]]
    if family == "exploding":
        prediction = scheduler.config.prediction_type
        return [_exploding_level(s, prediction) for s in _sigmas(scheduler)[:count]]
    if family == "converting":
        prediction = scheduler.config.prediction_type
        pairs = [scheduler._sigma_to_alpha_sigma_t(s) for s in scheduler.sigmas[:count]]
        return [
            _level(float(alpha), float(sigma), prediction, own)
            for (alpha, sigma), own in zip(pairs, _sigmas(scheduler), strict=False)
        ]
    if family == "preserving":
        prediction = scheduler.config.prediction_type
        kept = [float(scheduler.alphas_cumprod[int(t)]) for t in scheduler.timesteps.tolist()]
        return [_level(math.sqrt(k), math.sqrt(1 - k), prediction, math.sqrt((1 - k) / k) if k else None) for k in kept]
    sigmas = _sigmas(scheduler)
    return [NoiseLevel(sigma=sigmas[i] if i < len(sigmas) else None, coordinate=float(i)) for i in range(count)]


def _family(scheduler: Any) -> str | None:
    # By name along the inheritance chain, so that a user's subclass of a known scheduler is known too.
    names = {cls.__name__ for cls in type(scheduler).__mro__}
    for family, members in (
        ("flow", _FLOW),
        ("exploding", _EXPLODING),
        ("converting", _CONVERTING),
        ("preserving", _PRESERVING),
    ):
        if names & members:
            return family
    return None


def _sigmas(scheduler: Any) -> list[float]:
    sigmas: Any = getattr(scheduler, "sigmas", None)
    return [float(s) for s in sigmas.tolist()] if hasattr(sigmas, "tolist") else []


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


def _exploding_level(sigma: float, prediction: str) -> NoiseLevel:
    # The denoiser sees the sample shrunk to unit variance, and v is defined on that.
    shrink = 1 / math.sqrt(sigma * sigma + 1)
    level = _level(1.0, sigma, prediction, sigma)
    if prediction == "v_prediction":
        level = replace(level, sample_weight=shrink * shrink, output_weight=-sigma * shrink)
    return replace(level, input_scale=shrink)
