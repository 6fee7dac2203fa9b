"""One generation: where it stands in its schedule, and what each branch remembers."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.forecasters import Blend, BranchForecaster, Forecaster
from omnireuse.diffusion.reuse.noise import NoiseLevel
from omnireuse.diffusion.reuse.policy import StepView
from omnireuse.diffusion.reuse.runtime.track import Track
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["Run"]

logger = logging.getLogger("omnireuse")


class Run:
    """The state of one generation. It is told where it stands: `advance` at the end of each step.

    Args:
        number: counted from 1 within a session.
        total: number of denoising steps; None where nobody knows.
        levels: noise level of each step; shorter than the run, or empty, where unknown.
    """

    def __init__(
        self, number: int, strategy: Strategy, agreement: Agreement, total: int | None, levels: list[NoiseLevel]
    ) -> None:
        self.number = number
        self.total = total
        self.index = 0
        self.latents: torch.Tensor | None = None
        """The sample that the scheduler returned last, which the next step starts from."""
        self.calls = 0
        """Denoiser calls since the step began."""
        self.branches: dict[tuple[int, str], int] = {}
        """How often each branch of each denoiser was called since the step began."""
        self.pending: Any = None
        """What a region carries from the first call of a step to its end."""
        self._together = strategy.together
        self._leads: dict[tuple[object, int | None], bool] = {}
        self._levels = levels
        known = (
            total is not None and 0 < total <= len(levels) and all(each.sample_weight is not None for each in levels)
        )
        self._noises = tuple(level.at for level in levels[:total]) if known else None
        self._by_steps = strategy.axis == "steps"
        self._order = int(getattr(strategy.forecaster, "order", 0))
        self._strategy, self._agreement = strategy, agreement
        self._forecaster: Forecaster = strategy.forecaster
        self._tracks: dict[object, Track] = {}
        self.placeholders: dict[tuple[int, str], Any] = {}
        """The last computed output of each denoiser and branch, handed out where only its shape matters."""
        self.calls_when_computed: dict[int | None, int] = {}
        """Denoiser calls of each sample's last computed step: guidance that sets in or ends changes it."""
        self.samples: int | None = None
        """Samples of the batch, once the scheduler has been seen with them."""
        self.undivided: set[tuple[int, str]] = set()
        """Calls whose results have no rows, so that their samples cannot be told apart."""
        self.quantity: str | None = None
        """What this run remembers, once its first computed step has shown the shapes."""

    @property
    def level(self) -> NoiseLevel:
        """The noise level of the current step; the step index stands in where the schedule is unknown."""
        if self.index < len(self._levels):
            return self._levels[self.index]
        return NoiseLevel(sigma=None, at=float(self.index))

    @property
    def at(self) -> float:
        """Where forecasters stand now, on the strategy's axis."""
        return float(self.index) if self._by_steps else self.level.at

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.total is not None and self.index >= self.total

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage that this run holds beyond what the pipeline holds itself."""
        held = sum(track.kept_bytes for track in self._tracks.values())
        leaves = pytree.tree_leaves(list(self.placeholders.values()))
        return held + sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))

    def track(self, key: object, branch: int) -> Track:
        """The memory of one branch, which is called in this place of a step; empty at first."""
        if key not in self._tracks:
            forecaster, remember = self._forecaster, self._forecaster.start
            if isinstance(forecaster, BranchForecaster) and branch < forecaster.branches:
                remember = partial(forecaster.start_branch, branch)
            self._tracks[key] = Track(self._strategy, self._agreement, remember)
        return self._tracks[key]

    def _check_branches(self) -> None:
        """Weights for each branch are of no use where others are called than were fitted, from the start or from some
        step on."""
        known = self._forecaster.branches if isinstance(self._forecaster, BranchForecaster) else 1
        if known not in (1, self.calls):
            logger.warning(
                "the weights were fitted for %d branches of guidance; step %d has %d calls, so a blend forecasts "
                "instead",
                known,
                self.index,
                self.calls,
            )
            self._forecaster = Blend()
            self._tracks.clear()

    def lead_of(self, key: tuple[int, str] | str, sample: int | None) -> bool | None:
        """What the first branch of this step has done, where the others follow it; None for the first itself."""
        return self._leads.get((key[0], sample)) if self._together else None

    def lead(self, key: tuple[int, str] | str, sample: int | None, reuse: bool) -> None:
        """Note what is done, for the branches that follow."""
        self._leads.setdefault((key[0], sample), reuse)

    def view(self, branch: int, drift: float | None, error: float | None) -> StepView:
        """The scalars that a policy sees now."""
        return StepView(
            index=self.index,
            total=self.total,
            sigma=self.level.sigma,
            branch=branch,
            drift=drift,
            error=error,
            noise=None if self.level.sample_weight is None else self.level.at,
            noises=self._noises,
            at=self.at,
            order=self._order,
        )

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
        self._check_branches()
        self.index += 1
        self.calls = 0
        self.branches.clear()
        self._leads.clear()
        self.pending = None
        self.latents = latents

    def close(self) -> None:
        """Drop everything that was kept."""
        self._tracks.clear()
        self.placeholders.clear()
        self.pending = None
        self.latents = None
