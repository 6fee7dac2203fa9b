"""Reuse while a signal has changed little since the last computed step, or in sum since then."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from omnireuse.base.validation import Count, Index, Positive, Unlimited, check_fields, check_finite_list
from omnireuse.policies.base import StepView, ThresholdPolicy, known_total
from omnireuse.policies.fixed import Mask, check_mask, mask_of

__all__ = ["EasyCache", "ResidualDiff", "SeaCache", "TeaCache", "TeaCacheState"]


class TeaCacheState(NamedTuple):
    """The sum of the rescaled relative changes of the signal since the last computed step of a branch."""

    accumulated_rel_l1_distance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TeaCache(ThresholdPolicy):
    """Reuse while the accumulated estimate of the output's change stays below a threshold.

    Source: "Timestep Embedding Tells: It's Time to Cache for Video Diffusion Model", arXiv 2411.19108, section 3.3.

    Args:
        rel_l1_thresh: accumulated relative L1 change at which a step is computed, > 0. Raising it reuses more.
        coefficients: five coefficients of the degree-4 polynomial from signal change to output change, highest power
            first.

    Raises:
        ConfigError: a threshold that is not finite and positive; not exactly five finite coefficients.
    """

    rel_l1_thresh: Positive = 0.2
    coefficients: tuple[float, ...] = (0.0, 0.0, 0.0, 1.0, 0.0)

    needs_drift: ClassVar[bool] = True
    threshold_name: ClassVar[str] = "rel_l1_thresh"

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "coefficients", check_finite_list(self, "coefficients", self.coefficients, length=5))

    def start(self) -> TeaCacheState:
        return TeaCacheState()

    def measured(self, state: TeaCacheState, view: StepView) -> float | None:
        if view.drift is None:
            return None
        rescaled = 0.0
        for coefficient in self.coefficients:
            rescaled = rescaled * view.drift + coefficient
        total = state.accumulated_rel_l1_distance + abs(rescaled)
        return total if math.isfinite(total) else math.inf

    def after(self, state: TeaCacheState, view: StepView, reused: bool) -> TeaCacheState:
        total = self.measured(state, view) if reused else None
        return self.start() if total is None else TeaCacheState(total)


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
    forecaster gives the forecast, while the paper holds v − x.

    Args:
        threshold: expected relative L1 change at which a step is computed, > 0. Raising it reuses more.
        warmup: steps at the start that are always computed, ≥ 1; the second gives the first rate.

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
        threshold: accumulated relative L1 change at which a step is computed, > 0. Raising it reuses more.
        warmup: steps at the start that are always computed, ≥ 1.

    Raises:
        ConfigError: a value out of range.
    """

    threshold: Positive = 0.15
    warmup: Count = 2

    signal: ClassVar[str | None] = "filtered_latents"


@dataclass(frozen=True, kw_only=True)
class ResidualDiff(ThresholdPolicy):
    """Reuse if mean|R_last − R| / mean|R_last| is below a threshold, with R_last from the last computed step.

    Nothing is accumulated. In region "tail" R is what the first blocks add to their input; in other regions it is
    their signal.

    Source: DBCache of cache-dit (https://github.com/vipshop/cache-dit), after First Block Cache of ParaAttention
    (https://github.com/chengzeyi/ParaAttention).

    Args:
        residual_diff_threshold: relative L1 distance at which a step is computed, finite and > 0. Raising it reuses
            more.
        max_warmup_steps: steps at the start that are always computed, ≥ 0.
        max_cached_steps: most reused steps of a run; -1 for no limit.
        max_continuous_cached_steps: longest run of reused steps; -1 for no limit.
        mask: steps that are computed in any case (`Mask`); None for none.

    Raises:
        ConfigError: a value out of range.
        StateError: at the first decision of a run, if an explicit mask is not as long as the run, or the step count
            is not known.
    """

    residual_diff_threshold: Positive = 0.24
    max_warmup_steps: Index = 4
    max_cached_steps: Unlimited = -1
    max_continuous_cached_steps: Unlimited = 3
    mask: Annotated[Mask, check_mask] | None = None

    needs_drift: ClassVar[bool] = True
    drift_since_computed: ClassVar[bool] = True
    threshold_name: ClassVar[str] = "residual_diff_threshold"
    warmup_name: ClassVar[str | None] = "max_warmup_steps"

    def __post_init__(self) -> None:
        check_fields(self)

    def start(self) -> tuple[int, int]:
        """Reused steps of the run, and in a row."""
        return 0, 0

    def measured(self, state: tuple[int, int], view: StepView) -> float | None:
        return view.drift if view.index >= self.max_warmup_steps else None

    def wants_reuse(self, state: tuple[int, int], view: StepView) -> bool:
        if self.mask is not None and mask_of(self.mask, known_total(self, view))[view.index]:
            return False
        limits = (self.max_cached_steps, self.max_continuous_cached_steps)
        within = all(limit < 0 or count < limit for count, limit in zip(state, limits, strict=True))
        return within and super().wants_reuse(state, view)

    def after(self, state: tuple[int, int], view: StepView, reused: bool) -> tuple[int, int]:
        return (state[0] + 1, state[1] + 1) if reused else (state[0], 0)
