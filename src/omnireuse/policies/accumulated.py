"""EasyCache and SeaCache: reuse while the accumulated change of a signal stays below a threshold.

They differ in the signal. Unlike TeaCache they need nothing that was fitted to a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from omnireuse.base.validation import Count, Positive, check_fields
from omnireuse.policies.base import StepView, ThresholdPolicy

__all__ = ["EasyCache", "SeaCache"]


class _AccumulatedChange(ThresholdPolicy):
    warmup: int

    needs_drift: ClassVar[bool] = True
    threshold_name: ClassVar[str] = "threshold"
    warmup_name: ClassVar[str | None] = "warmup"

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> float:
        return 0.0

    def measured(self, state: float, view: StepView) -> float | None:
        return None if view.drift is None or view.index < self.warmup else state + view.drift

    def after(self, state: float, view: StepView, reused: bool) -> float:
        if not reused or view.drift is None:
            return 0.0
        return state + view.drift if math.isfinite(view.drift) else math.inf


@dataclass(frozen=True, kw_only=True)
class EasyCache(_AccumulatedChange):
    """Reuse while the expected change of the output since the last computed step is small.

    The output's relative change is expected to be that of the latents times a rate: the ratio of the two changes
    between the last two computed steps.

    Source: EasyCache, "Less is Enough", arXiv 2507.02860: the rate k = |Δv| / |Δx|, the sum of the expected changes
    k |Δx| / |v| against a threshold, the warm-up and the computed last step. Ours: the rate is that of relative
    changes between computed steps, the value is the one remembered (v itself with prediction target "output"), and the
    forecaster gives the forecast, where the paper holds v − x.

    Args:
        threshold: expected relative L1 change at which a step computes, > 0. Raising it reuses more.
        warmup: steps at the start that always compute, ≥ 1; the second gives the first rate.

    Raises:
        ConfigError: a value out of range.
    """

    threshold: Positive = 0.05
    warmup: Count = 3

    signal: ClassVar[str | None] = "expected_output"


@dataclass(frozen=True, kw_only=True)
class SeaCache(_AccumulatedChange):
    """Reuse while the latents, filtered to what stands out of the noise, have changed little.

    Source: SeaCache, arXiv 2602.18993. The paper filters the input of the first block; here the latents are filtered,
    as in diffusers 0.42, which needs no knowledge of the model (`omnireuse.noise.signals.filtered`).

    Args:
        threshold: accumulated relative L1 change at which a step computes, > 0. Raising it reuses more.
        warmup: steps at the start that always compute, ≥ 1.

    Raises:
        ConfigError: a value out of range.
    """

    threshold: Positive = 0.15
    warmup: Count = 2

    signal: ClassVar[str | None] = "filtered_latents"
