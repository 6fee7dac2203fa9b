"""One step of a scheduler as arithmetic on the model's output and the latents, measured on a copy of the scheduler."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse import messages
from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.live import previous_sample

__all__ = ["Arithmetic", "next_latents"]


@dataclass(frozen=True)
class Arithmetic:
    """A step that leads with output o to `without` + `factor` · o.

    Attributes:
        without: the latents that output 0 leads to.
        factor: how far an output of 1 moves the latents.
    """

    without: torch.Tensor
    factor: float

    @classmethod
    def of(cls, scheduler: Any, given: Mapping[str, Any]) -> Arithmetic:
        """The arithmetic of the step that these arguments ask for. The scheduler stays as it is.

        Raises:
            UnsupportedModelError: the step does not depend on the output by one factor.
        """
        output, sample = given["model_output"].float(), given["sample"].float()

        def arrived(with_output: torch.Tensor) -> torch.Tensor:
            # On a copy, with generators that are put back: the true step is still to come.
            states = [(each, each.get_state()) for each in _generators(given.get("generator"))]
            devices = [sample.device] if sample.device.type == "cuda" else []
            try:
                twin = copy.deepcopy(scheduler)
                # Without a generator noise is drawn from torch's own.
                with torch.random.fork_rng(devices=devices):
                    return next_latents(twin.step(**{**given, "model_output": with_output, "sample": sample})).float()
            finally:
                for generator, state in states:
                    generator.set_state(state)

        zeros = torch.zeros_like(output)
        without = arrived(zeros)
        moved = arrived(torch.ones_like(output)) - without
        factor = moved.mean()
        if not factor.abs() > 0 or (moved - factor).abs().max() > 1e-3 * factor.abs():
            raise UnsupportedModelError(messages.STEP_NOT_LINEAR, scheduler=type(scheduler).__name__)
        return cls(without, float(factor))

    def output_to(self, latents: torch.Tensor) -> torch.Tensor:
        """The output with which the step arrives at these latents."""
        return (latents.float() - self.without) / self.factor


def next_latents(result: object) -> torch.Tensor:
    """The latents in what a scheduler's step returned.

    Raises:
        UnsupportedModelError: there are none.
    """
    sample = previous_sample(result)
    if sample is None:
        raise UnsupportedModelError("the scheduler's step returns no sample")
    return sample


def _generators(given: Any) -> list[torch.Generator]:
    return [given] if isinstance(given, torch.Generator) else list(given or [])
