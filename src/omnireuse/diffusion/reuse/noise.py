"""The noise levels of a scheduler, and the algebra between a model's output and what is remembered of it.

Every prediction type is linear: x0 = a · sample + b · output with scalars a and b that follow from the noise level.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from omnireuse.diffusion.reuse.signals import magnitude
from omnireuse.errors import UnsupportedModelError

__all__ = ["NoiseLevel", "OutputAlgebra", "noise_levels", "told_level"]

logger = logging.getLogger("omnireuse")

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


_X0_ONLY = {"DEISMultistepScheduler", "FlowUniPCMultistepScheduler", "UniPCMultistepScheduler"}


@dataclass(frozen=True, kw_only=True)
class NoiseLevel:
    """One step of a schedule.

    Attributes:
        sigma: the noise level in the scheduler's own scale; None where it has none.
        coordinate: what forecasters measure distance in: σ/(α+σ), in [0, 1] for every parametrisation and equal to σ
            for flow matching; the step index where the scheduler's noise is unknown.
        sample_weight: a of x0 = a · sample + b · output; None where the algebra is unknown.
        output_weight: b of the same; never 0 where `sample_weight` is known, except at zero noise.
        input_scale: what the scheduler multiplies the sample with before the denoiser sees it.
        step: (c, r) where the scheduler goes from x to c · x0 + r · x, as DDIM does, and solvers of higher order but
            for what they take from earlier steps; None for solvers that add noise or call the model more than once.
        flow_scale: 1/(α+σ): latents times this are (1 − t) · clean + t · noise, with t the coordinate. Known where
            `step` is and velocities can stand in for x0: not under UniPC and DEIS, where that loses with guidance
            (``python -m bench corrections``).
    """

    sigma: float | None
    coordinate: float
    sample_weight: float | None = None
    output_weight: float | None = None
    input_scale: float = 1.0
    step: tuple[float, float] | None = None
    flow_scale: float | None = None

    @property
    def velocity_step(self) -> tuple[float, float] | None:
        """(c, r) where the scheduler goes from x to c · velocity + r · x; None where that is not known."""
        if self.step is None or self.flow_scale is None or self.step[0] <= 0 or self.step[1] < 0:
            return None
        return -self.step[0] * self.coordinate, self.step[1] + self.step[0] * self.flow_scale

    def can_denoise(self, sample: torch.Tensor | None, output: torch.Tensor) -> bool:
        """Whether x0 is defined here: a known algebra, noise left, and a sample of the output's shape."""
        is_known = self.sample_weight is not None and bool(self.output_weight)
        return is_known and sample is not None and sample.shape == output.shape and output.is_floating_point()

    def weights_of(self, quantity: str) -> tuple[float, float]:
        """a and b of a · sample + b · output: of "x0", or of "velocity" = (flow_scale · sample − x0) / coordinate."""
        assert self.sample_weight is not None
        assert self.output_weight is not None
        if quantity == "x0":
            return self.sample_weight, self.output_weight
        assert self.flow_scale is not None
        return (self.flow_scale - self.sample_weight) / self.coordinate, -self.output_weight / self.coordinate

    def value_of(self, sample: torch.Tensor, output: torch.Tensor, quantity: str = "x0") -> torch.Tensor:
        """x0 or the velocity, in float32 at least: their differences are small beside the terms."""
        of_sample, of_output = self.weights_of(quantity)
        dtype = torch.promote_types(output.dtype, torch.float32)
        return torch.add(sample.to(dtype) * of_sample, output.to(dtype), alpha=of_output)

    def output_of(
        self, sample: torch.Tensor, value: torch.Tensor, dtype: torch.dtype, quantity: str = "x0"
    ) -> torch.Tensor:
        """The model output that `value_of` would turn into `value`: (value − a · sample) / b."""
        of_sample, of_output = self.weights_of(quantity)
        return value.sub(sample.to(value.dtype), alpha=of_sample).div_(of_output).to(dtype)


class OutputAlgebra:
    """Turns the outputs of one generation into what is remembered of them, and back.

    Args:
        quantity: what shall be remembered, "x0", "velocity" or "output".
        is_required: whether a run in which x0 is not defined is refused.
    """

    def __init__(self, quantity: str, *, is_required: bool) -> None:
        self.quantity: str | None = None
        """What is remembered; None until the first computed output has shown whether x0 is defined."""
        self._wanted, self._is_required = quantity, is_required

    def settle(self, level: NoiseLevel, sample: torch.Tensor | None, output: torch.Tensor) -> None:
        """Choose the quantity at the first computed output: the wanted one where x0 is defined.

        Raises:
            UnsupportedModelError: x0 is required and is not defined.
        """
        if self.quantity is not None:
            return
        self.quantity = self._wanted
        if self._wanted == "output" or level.can_denoise(sample, output):
            return
        is_unknown = level.sample_weight is None
        why = "the noise of its scheduler is not known" if is_unknown else "the output does not have the latents' shape"
        if self._is_required:
            raise UnsupportedModelError(
                f"Strategy(quantity={self._wanted!r}) is not defined for this run: {why}; use quantity='output'"
            )
        logger.warning("reuse remembers the raw output instead of %s in this run: %s", self._wanted, why)
        self.quantity = "output"

    def value(self, level: NoiseLevel, sample: torch.Tensor | None, output: torch.Tensor) -> torch.Tensor | None:
        """What to remember of an output; None where the quantity is not defined at this step."""
        if self.quantity == "output":
            # A copy: whoever receives the output may write to it.
            return output.clone()
        if sample is None or self.quantity is None or not level.can_denoise(sample, output):
            return None
        return level.value_of(sample.detach(), output, self.quantity)

    def values(
        self, level: NoiseLevel, samples: Sequence[torch.Tensor | None], outputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """What to remember of several outputs; empty where the quantity of any is not defined at this step.

        Raises:
            UnsupportedModelError: as `settle`.
        """
        pairs = list(zip(samples, outputs, strict=True))
        for sample, output in pairs:
            self.settle(level, sample, output)
        found = [self.value(level, sample, output) for sample, output in pairs]
        values = [value for value in found if value is not None]
        return values if len(values) == len(found) else []

    def outputs(
        self,
        level: NoiseLevel,
        samples: Sequence[torch.Tensor | None],
        values: Sequence[torch.Tensor],
        dtypes: Sequence[torch.dtype],
    ) -> list[torch.Tensor]:
        """The outputs that remembered or forecast values stand for; new tensors."""
        if self.quantity is None or self.quantity == "output":
            return [value.clone() for value in values]
        outputs = []
        for sample, value, dtype in zip(samples, values, dtypes, strict=True):
            assert sample is not None, "x0 was chosen with a sample"
            outputs.append(level.output_of(sample.detach(), value, dtype, self.quantity))
        return outputs

    def scales(
        self, level: NoiseLevel, sample: torch.Tensor | None, output: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean magnitudes of the output and of x0, in the units of the value. Where x0 is not defined the output stands
        for it."""
        share = abs(level.output_weight or 1.0)
        if self.quantity == "x0":
            return magnitude(output) * share, magnitude(value)
        if sample is None or not level.can_denoise(sample, output):
            return magnitude(output), magnitude(output)
        unit = level.coordinate if self.quantity == "velocity" else share
        return magnitude(output) * (share / unit), magnitude(level.value_of(sample.detach(), output)) / unit


def noise_levels(scheduler: Any) -> list[NoiseLevel]:
    """The noise level of each of the scheduler's timesteps, in order.

    Cost: reads `timesteps` and `sigmas` once a run; where they are on an accelerator, that is one host synchronisation.
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
    found = with_steps(levels, marginals, _end(family, scheduler))
    return [replace(level, flow_scale=None) for level in found] if names & _X0_ONLY else found


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


def with_steps(
    levels: Sequence[NoiseLevel], marginals: Sequence[tuple[float, float]], end: tuple[float, float]
) -> list[NoiseLevel]:
    """Levels with `NoiseLevel.step`, for a solver that adds no noise and calls the model once a step.

    Args:
        levels: of each step.
        marginals: the weights of the clean sample and of the noise in the latents, at each step.
        end: the same after the last step.
    """
    return [
        replace(level, step=(there - after / sigma * alpha, after / sigma), flow_scale=1 / (alpha + sigma))
        if sigma
        else level
        for level, ((alpha, sigma), (there, after)) in zip(levels, pairwise([*marginals, end]), strict=True)
    ]


def told_level(sigma: float, first: float) -> NoiseLevel:
    """The noise level of a σ that a pipeline names, where the scheduler's algebra is not known.

    Args:
        sigma: at this step.
        first: at the first step of the run: above 1, σ is the noise beside unscaled latents, else its share.
    """
    return NoiseLevel(sigma=sigma, coordinate=sigma / (1 + sigma) if first > 1 else sigma)


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
    """Whether it is one of `_ONE_CALL`, steps as its class does, and adds no noise."""
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
