"""One run of a pipeline."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.generation import Generation
from omnireuse.diffusion.reuse.learning import Lesson
from omnireuse.diffusion.reuse.noise import told_level

__all__ = ["Run"]

S = TypeVar("S")


class Run:
    """A generation, and which call of the current step is under way. The session keeps it up to date.

    Attributes:
        generation: decides, and remembers.
        latents: the sample that the scheduler returned last, which the current step starts from.
        step: the step that the following counts belong to.
        calls: denoiser calls.
        orders: calls of each denoiser.
        branches: calls of each branch of each denoiser.
        region_state: what the region keeps for this run, a dataclass; None before its first call.
        told: the step that `cache_context` has named last; None where it names none.
        is_stepped: whether somebody ends its steps: the scheduler's `step`, or a user.
        lesson: learns from it; None where nobody does.
    """

    def __init__(self, generation: Generation, lesson: Lesson | None = None) -> None:
        self.generation, self.lesson = generation, lesson
        self.latents: torch.Tensor | None = None
        self.step = self.calls = 0
        self.orders: Counter[int] = Counter()
        self.branches: Counter[tuple[int, str]] = Counter()
        self.told: int | None = None
        self.is_stepped = False
        self._first_sigma: float | None = None
        self.region_state: Any = None

    def sigma_told(self, sigma: float) -> None:
        """`cache_context` has named the noise level of this step, and the scheduler's algebra is not known."""
        if self._first_sigma is None:
            self._first_sigma = sigma
        self.generation.call_at(told_level(sigma, self._first_sigma))

    def begin(self, state: S) -> S:
        """What the region keeps for this run from its first call on."""
        self.region_state = state
        return state

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage that this run holds beyond what the pipeline holds itself."""
        kept = [] if self.region_state is None else pytree.tree_leaves(vars(self.region_state))
        tensors = [leaf for leaf in kept if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta"]
        return self.generation.kept_bytes + sum(tensor.nbytes for tensor in tensors)

    def close(self) -> None:
        """Drop everything that was kept."""
        self.generation.finish()
        self.region_state = self.latents = None
