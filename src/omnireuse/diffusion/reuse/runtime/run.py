"""One run of a pipeline."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from omnireuse.diffusion.reuse.generation import Generation

__all__ = ["Run"]


class Run:
    """A generation, and which call of the current step is under way. The session keeps it up to date.

    Attributes:
        generation: decides, and remembers.
        latents: the sample that the scheduler returned last, which the current step starts from.
        step: the step that the following counts belong to.
        calls: denoiser calls.
        orders: calls of each denoiser.
        branches: calls of each branch of each denoiser.
        region_state: what the region keeps for this run, an object with `kept_bytes`; None before its first call.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.latents: torch.Tensor | None = None
        self.step = self.calls = 0
        self.orders: Counter[int] = Counter()
        self.branches: Counter[tuple[int, str]] = Counter()
        self.region_state: Any = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage that this run holds beyond what the pipeline holds itself."""
        return self.generation.kept_bytes + (0 if self.region_state is None else self.region_state.kept_bytes)

    def close(self) -> None:
        """Drop everything that was kept."""
        self.generation.finish()
        self.region_state = self.latents = None
