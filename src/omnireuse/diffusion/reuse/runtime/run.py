"""One run of a pipeline: its generation, and which call of which step is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.generation import Emit, Generation
from omnireuse.diffusion.reuse.noise import NoiseLevel
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["RegionState", "Run"]


class RegionState(Protocol):
    """What a region keeps for one run."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage held."""


class Run:
    """What a pipeline's run has beyond the decisions: it is told where it stands by `advance` at the end of each step.

    Args:
        number: counted from 1 within a session.
        total: number of denoising steps; None where nobody knows.
        levels: noise level of each step; shorter than the run, or empty, where unknown.
        emit: takes the events.
    """

    def __init__(
        self,
        number: int,
        strategy: Strategy,
        agreement: Agreement,
        total: int | None,
        levels: Sequence[NoiseLevel],
        emit: Emit | None = None,
    ) -> None:
        self.generation = Generation(strategy, levels, total=total, agreement=agreement, number=number, emit=emit)
        self.latents: torch.Tensor | None = None
        """The sample that the scheduler returned last, which the next step starts from."""
        self.calls = 0
        """Denoiser calls since the step began."""
        self.branches: dict[tuple[int, str], int] = {}
        """How often each branch of each denoiser was called since the step began."""
        self.region_state: Any = None
        """A `RegionState` of the region at work; None before its first call."""

    @property
    def number(self) -> int:
        """Counted from 1 within a session."""
        return self.generation.number

    @property
    def total(self) -> int | None:
        """Number of steps; None where nobody knows."""
        return self.generation.total

    @property
    def index(self) -> int:
        """The current step, counted from 0."""
        return self.generation.index

    @property
    def level(self) -> NoiseLevel:
        """The noise level of the current step."""
        return self.generation.level

    @property
    def coordinate(self) -> float:
        """Where forecasters stand now, on the strategy's axis."""
        return self.generation.coordinate

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.generation.finished

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage that this run holds beyond what the pipeline holds itself."""
        return self.generation.kept_bytes + (0 if self.region_state is None else self.region_state.kept_bytes)

    def name_branch(self, denoiser: int, context: str | None) -> str:
        """The branch of a call that begins: its cache context, else its order among the step's calls of this
        denoiser."""
        name = context if context is not None else str(self.order(denoiser))
        repeat = self.branches.get((denoiser, name), 0)
        self.branches[denoiser, name] = repeat + 1
        self.calls += 1
        return f"{name}#{repeat + 1}" if repeat else name

    def order(self, denoiser: int) -> int:
        """How many calls of this denoiser the step has seen."""
        return sum(count for (each, _), count in self.branches.items() if each == denoiser)

    def advance(self, latents: torch.Tensor | None) -> None:
        """The step is over; the next one starts from `latents`."""
        self.generation.advance()
        self.calls = 0
        self.branches.clear()
        self.latents = latents

    def close(self) -> None:
        """Drop everything that was kept."""
        self.generation.finish()
        self.region_state = None
        self.latents = None
