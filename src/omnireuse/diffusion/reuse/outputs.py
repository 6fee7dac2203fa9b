"""Between a model's output and the quantity that is remembered of it."""

from __future__ import annotations

import logging

import torch

from omnireuse.diffusion.reuse.noise import NoiseLevel
from omnireuse.diffusion.reuse.quantities import can_denoise, denoised, output_of
from omnireuse.diffusion.reuse.signals import magnitude
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import UnsupportedModelError

__all__ = ["OutputAlgebra"]

logger = logging.getLogger("omnireuse")


class OutputAlgebra:
    """Turns the outputs of one generation into the strategy's quantity and back.

    Attributes:
        quantity: what this generation remembers; None until its first computed step has shown the shapes.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.quantity: str | None = None
        self._wanted = strategy.chosen_quantity
        self._promised = strategy.quantity is not None

    def settle(self, level: NoiseLevel, sample: torch.Tensor | None, output: torch.Tensor) -> None:
        """Choose the quantity, once: x0 where it is defined.

        Raises:
            UnsupportedModelError: x0 was asked for by name and is not defined.
        """
        if self.quantity is not None:
            return
        self.quantity = self._wanted
        if self._wanted != "x0" or can_denoise(level, sample, output):
            return
        why = (
            "the noise of its scheduler is not known"
            if level.sample_weight is None
            else "the output does not have the shape of the latents"
        )
        if self._promised:
            raise UnsupportedModelError(
                f"Strategy(quantity='x0') is not defined for this run: {why}; use quantity='output'"
            )
        logger.warning("reuse remembers the raw output instead of x0 in this run: %s", why)
        self.quantity = "output"

    def veto(self, level: NoiseLevel) -> str | None:
        """Why no output could be recovered at this step: x0 says nothing about the output without noise."""
        return "noiseless" if self.quantity == "x0" and not level.output_weight else None

    def value(self, level: NoiseLevel, sample: torch.Tensor | None, output: torch.Tensor) -> torch.Tensor | None:
        """What to remember of an output; None where the quantity is not defined at this step."""
        if self.quantity == "output":
            # A copy: whoever receives the output may write to it.
            return output.clone()
        if sample is None or not can_denoise(level, sample, output):
            return None
        return denoised(level, sample.detach(), output)

    def output(
        self, level: NoiseLevel, sample: torch.Tensor | None, value: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        """The output that a remembered or forecast value stands for; a tensor of its own."""
        if self.quantity == "output":
            return value.clone()
        assert sample is not None, "x0 was settled on with a sample"
        # Detached, because the model was asked about these latents, and its answer carries no gradient.
        return output_of(level, sample.detach(), value, dtype)

    def scales(
        self, level: NoiseLevel, sample: torch.Tensor | None, output: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean magnitudes of the output and of x0, both in the units of the value, for relative errors. Where x0 is not
        defined the output stands for it."""
        if self.quantity == "x0":
            return magnitude(output) * abs(level.output_weight or 1.0), magnitude(value)
        if sample is None or not can_denoise(level, sample, output):
            return magnitude(output), magnitude(output)
        return magnitude(output), magnitude(denoised(level, sample.detach(), output)) / abs(level.output_weight or 1.0)
