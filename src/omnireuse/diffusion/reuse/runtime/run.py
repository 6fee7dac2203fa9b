"""One run of a pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.generation import Generation
from omnireuse.diffusion.reuse.noise import NoiseLevel, told_level
from omnireuse.diffusion.reuse.strategy import Strategy

if TYPE_CHECKING:
    from omnireuse.diffusion.reuse.runtime.regions.base import Region

__all__ = ["Chooser", "Chosen", "Run", "RunStart"]

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run that begins.

    Attributes:
        total: number of steps; None where it is not known.
        levels: noise level of each step; empty where unknown.
        scheduler: the pipeline's scheduler, with its timesteps; None where nobody watches one.
        shape: of the denoiser's latents, with the batch; empty where they are not one tensor.
    """

    total: int | None
    levels: Sequence[NoiseLevel]
    scheduler: Any
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What a run follows.

    Attributes:
        strategy: decides and forecasts.
        region: takes its calls in place of the session's region; None for that one.
        kind: "reuse"; "measured" for a full run that is measured; "shadow" for a run of its own beside a picture, which
            is counted nowhere.
    """

    strategy: Strategy
    region: Region | None = None
    kind: Literal["reuse", "measured", "shadow"] = "reuse"


Chooser = Callable[[RunStart], Chosen]


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
        chosen: the strategy, and the region where it is not the session's.
        given: arguments of the scheduler's step that is under way, by name.
    """

    def __init__(self, generation: Generation, chosen: Chosen) -> None:
        self.generation, self.chosen = generation, chosen
        self.given: Mapping[str, Any] = {}
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
