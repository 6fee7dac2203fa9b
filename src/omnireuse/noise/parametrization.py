"""A noise level, and the algebra between a model's output and what is remembered of it.

Every prediction type is linear: x0 = a · sample + b · output with scalars a and b that follow from the noise level.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omnireuse import messages
from omnireuse.base.once import Once
from omnireuse.errors import UnsupportedModelError
from omnireuse.noise.signals import magnitude

__all__ = ["NoiseLevel", "Parametrization", "level_of_sigma"]

logger = logging.getLogger("omnireuse")


@dataclass(frozen=True, kw_only=True)
class NoiseLevel:
    """One step of a schedule.

    Attributes:
        sigma: the noise level in the scheduler's own scale; None if it has none.
        coordinate: the forecasters' measure of distance: σ/(α+σ), in [0, 1] for every parametrisation and equal to σ
            for flow matching; the step index if the scheduler's noise is unknown.
        sample_weight: a of x0 = a · sample + b · output; None if the algebra is unknown.
        output_weight: b of the same; never 0 if `sample_weight` is known, except at zero noise.
        input_scale: the scheduler's factor on the sample before the denoiser sees it.
        step: (c, r) if the scheduler goes from x to c · x0 + r · x, as DDIM does, and solvers of higher order but
            for what they take from earlier steps; None for solvers that add noise or call the model more than once.
        flow_scale: 1/(α+σ): latents times this are (1 − t) · clean + t · noise, with t the coordinate. Known if
            `step` is and velocities can stand in for x0: not under DEIS, where that loses up to 4 dB
            (bench/notes/2026-11-26-harm.md).
        is_bounded: whether a solver without noise of its own bounds x0 in its step (`clip_sample`, `thresholding`): its
            output is then easier to forecast (bench/notes/2026-11-25-clipping.md).
    """

    sigma: float | None
    coordinate: float
    sample_weight: float | None = None
    output_weight: float | None = None
    input_scale: float = 1.0
    step: tuple[float, float] | None = None
    flow_scale: float | None = None
    is_bounded: bool = False

    @property
    def noise(self) -> float | None:
        """Noise fraction in the latents, in [0, 1]; None if the scheduler's algebra is not known."""
        return None if self.sample_weight is None else self.coordinate

    @property
    def velocity_step(self) -> tuple[float, float] | None:
        """(c, r) if the scheduler goes from x to c · velocity + r · x; None if that is not known."""
        if self.step is None or self.flow_scale is None or self.step[0] <= 0 or self.step[1] < 0:
            return None
        return -self.step[0] * self.coordinate, self.step[1] + self.step[0] * self.flow_scale

    def can_denoise(self, sample: torch.Tensor | None, output: torch.Tensor) -> bool:
        """True if x0 is defined here: a known algebra, noise left, and a sample of the output's shape."""
        is_known = self.sample_weight is not None and bool(self.output_weight)
        return is_known and sample is not None and sample.shape == output.shape and output.is_floating_point()

    def factors(self, target: str) -> tuple[float, float] | None:
        """a and b of a · sample + b · output: of "x0", or of "velocity" = (flow_scale · sample − x0) / coordinate. None
        if that is not defined here, or for another target."""
        if self.sample_weight is None or not self.output_weight:
            return None
        if target == "x0":
            return self.sample_weight, self.output_weight
        if target != "velocity" or self.flow_scale is None or not self.coordinate:
            return None
        return (self.flow_scale - self.sample_weight) / self.coordinate, -self.output_weight / self.coordinate

    def value_of(self, sample: torch.Tensor, output: torch.Tensor, target: str = "x0") -> torch.Tensor:
        """x0 or the velocity, in float32 at least: their differences are small beside the terms."""
        factors = self.factors(target)
        assert factors is not None, "it is defined here"
        of_sample, of_output = factors
        dtype = torch.promote_types(output.dtype, torch.float32)
        return torch.add(sample.to(dtype) * of_sample, output.to(dtype), alpha=of_output)


class Parametrization:
    """The way from the outputs of one generation to the remembered values, and back.

    Args:
        target: the value to remember, "x0", "velocity", "output", or "residual": the output less what it was made from.
        is_required: whether a run in which x0 is not defined is refused.
    """

    def __init__(self, target: str, *, is_required: bool) -> None:
        self.target: str | None = None
        """The remembered one; None until a computed output has shown whether x0 is defined."""
        self._wanted, self._is_required = target, is_required
        self.said = Once()
        self.fell_back = False
        """True if the output is remembered in place of what was wanted."""

    def settle(self, level: NoiseLevel, sample: torch.Tensor | None, output: torch.Tensor) -> None:
        """Choose it at the first computed output: the wanted one if x0 is defined.

        Raises:
            UnsupportedModelError: x0 is required and is not defined.
        """
        if self.target is not None:
            return
        self.target = self._wanted
        if self._wanted in ("output", "residual") or level.can_denoise(sample, output):
            return
        is_unknown = level.sample_weight is None
        why = "the noise of its scheduler is not known" if is_unknown else "the output does not have the latents' shape"
        if self._is_required:
            raise UnsupportedModelError(messages.TARGET_UNDEFINED, target=self._wanted, why=why)
        self.target, self.fell_back = "output", True
        if self.said.is_new(why):
            logger.warning("reuse remembers the raw output instead of %s in this run: %s", self._wanted, why)

    def values(
        self, level: NoiseLevel, samples: Sequence[torch.Tensor | None], outputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The values to remember of several outputs; empty if any is not defined at this step.

        Raises:
            UnsupportedModelError: as `settle`.
        """
        pairs = list(zip(samples, outputs, strict=True))
        for sample, output in pairs:
            self.settle(level, sample, output)
        if self.target is None or self.target == "output":
            # Copies: whoever receives the outputs may write to them.
            return [output.clone() for output in outputs]
        if self.target == "residual":
            # A stream that nobody reads any more is handed on as it came.
            return [each.new_zeros(1) if each is of else each - of for of, each in pairs if of is not None]
        if not all(level.can_denoise(sample, output) for sample, output in pairs):
            return []
        return [level.value_of(sample.detach(), output, self.target) for sample, output in pairs if sample is not None]

    def outputs(
        self,
        factors: tuple[float, float] | None,
        samples: Sequence[torch.Tensor | None],
        values: Sequence[torch.Tensor],
        dtypes: Sequence[torch.dtype],
    ) -> list[torch.Tensor]:
        """The outputs that remembered or forecast values stand for, (value − a · sample) / b with the `factors` of this
        step; new tensors."""
        if self.target is None or self.target == "output":
            return [value.clone() for value in values]
        outputs = []
        for sample, value, dtype in zip(samples, values, dtypes, strict=True):
            assert sample is not None, "this target was chosen with a sample"
            if self.target == "residual":
                outputs.append(sample + value)
                continue
            assert factors is not None, "a step without noise is computed"
            given = sample.detach().to(value.dtype)
            outputs.append(value.sub(given, alpha=factors[0]).div_(factors[1]).to(dtype))
        return outputs

    def scales(
        self,
        level: NoiseLevel,
        samples: Sequence[torch.Tensor | None],
        outputs: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean magnitudes of the output and of x0, in the units of the values. If x0 is not defined the values stand
        for both."""
        share, sample, output = abs(level.output_weight or 1.0), samples[0], outputs[0]
        if self.target == "x0":
            return magnitude(output) * share, magnitude(values[0])
        if self.target == "residual" or sample is None or not level.can_denoise(sample, output):
            return (magnitude(*values),) * 2
        unit = level.coordinate if self.target == "velocity" else share
        return magnitude(output) * (share / unit), magnitude(level.value_of(sample.detach(), output)) / unit


def level_of_sigma(sigma: float, first: float) -> NoiseLevel:
    """The noise level of a σ that a pipeline names, if the scheduler's algebra is not known.

    Args:
        sigma: at this step.
        first: at the first step of the run: above 1, σ is the noise beside unscaled latents, else its share.
    """
    return NoiseLevel(sigma=sigma, coordinate=sigma / (1 + sigma) if first > 1 else sigma)
