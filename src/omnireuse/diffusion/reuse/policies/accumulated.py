"""EasyCache and SeaCache: reuse while the change of what they watch, added up, stays under a threshold.

They differ from each other in the signal alone, and from TeaCache in needing nothing fitted to a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from omnireuse.diffusion.reuse.policy import Limit, Policy, StepView
from omnireuse.diffusion.reuse.validation import check_at_least, check_positive

__all__ = ["EasyCache", "SeaCache"]


class _AccumulatedChange(Policy):
    threshold: float
    warmup: int

    needs_drift: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive(self, "threshold")
        check_at_least(self, "warmup", 1)

    @property
    def limit(self) -> Limit:
        """`threshold`."""
        return Limit("threshold", self.threshold)

    def measured(self, state: float, view: StepView) -> float | None:
        """The change since the last computed step, behind the warm-up."""
        return None if view.drift is None or view.index < self.warmup else state + view.drift

    def warmup_of(self, total: int | None) -> Limit:
        """`warmup`."""
        return Limit("warmup", self.warmup)

    def start(self) -> float:
        """The accumulated change: none yet."""
        return 0.0

    def wants_reuse(self, state: float, view: StepView) -> bool:
        """Whether the warm-up is over and the change since the last computed step under the threshold."""
        return view.index >= self.warmup and view.drift is not None and state + view.drift < self.threshold

    def after(self, state: float, view: StepView, reused: bool) -> float:
        """A computed step starts the account anew."""
        if not reused or view.drift is None:
            return 0.0
        return state + view.drift if math.isfinite(view.drift) else math.inf


@dataclass(frozen=True, kw_only=True)
class EasyCache(_AccumulatedChange):
    """Reuse while the output, as far as the latents foretell it, has changed little since the last computed step.

    The output's relative change at a step is expected to be that of the latents times a rate, the ratio of the two
    changes where both are known.

    Source: EasyCache, "Less is Enough", arXiv 2507.02860: the rate k = |Δv| / |Δx|, the expected change
    ε = k |Δx| / |v| of each step, their sum against a threshold, the warm-up and the computed last step. Ours: the rate
    is taken between the last two computed steps, both of whose outputs are true, in relative changes, |Δv|/|v| over
    |Δx|/|x|; the value whose change counts is the one remembered (v itself with quantity "output"); what stands in is
    the forecaster's, where the paper holds v − x.

    Args:
        threshold: expected relative L1 change of the remembered value at which a step computes, > 0. Raising it reuses
            more.
        warmup: steps at the start that always compute, ≥ 1; the second gives the first rate.

    Raises:
        ConfigError: a value out of range.
    """

    threshold: float = 0.05
    warmup: int = 3

    signal: ClassVar[str] = "expected_output"


@dataclass(frozen=True, kw_only=True)
class SeaCache(_AccumulatedChange):
    """Reuse while the latents, filtered to what stands out of the noise, have changed little.

    Source: SeaCache, arXiv 2602.18993: distances between spectrally filtered inputs, added up against a threshold. The
    paper filters the input of the first block; here the latents are filtered, as in diffusers 0.42, which needs no
    knowledge of the model. `omnireuse.diffusion.reuse.spectrum` has the filter, and says what of it is ours.

    Args:
        threshold: accumulated relative L1 change at which a step computes, > 0. Raising it reuses more.
        warmup: steps at the start that always compute, ≥ 1.

    Raises:
        ConfigError: a value out of range.
    """

    threshold: float = 0.15
    warmup: int = 2

    signal: ClassVar[str] = "filtered_latents"
