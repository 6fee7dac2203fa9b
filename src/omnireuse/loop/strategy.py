"""One choice on each axis: region, prediction target, signal, policy, forecaster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, get_args

import torch

from omnireuse.base.validation import Count, Index, check_fields, field_error, kind_error
from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse.forecasters.base import Forecaster, Memory
from omnireuse.forecasters.blend import Blend
from omnireuse.forecasters.hold import Hold
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.policies.base import Policy, check_reserved_names, unasked
from omnireuse.policies.spread import SHORT_RUN, Spread

__all__ = ["REGIONS", "Axis", "PredictionTarget", "Region", "Signal", "Strategy", "WholeRegion"]

Axis = Literal["noise", "steps"]
"""The noise level, in [0, 1], or the step index if the scheduler's is not known; or always the step index."""
PredictionTarget = Literal["x0", "output", "residual"]
"""The denoised sample, from the output, the latents and the noise level; the tensor itself; or what the block stack
added to its input."""
Signal = Literal["expected_output", "filtered_latents", "first_residual", "latents", "modulated_input", "none"]
"""The remembered value, whose change is expected from that of the latents; the latents, weighted by how far each
frequency stands out of the noise; what the first blocks, which always run, added to their input; the tensor that the
denoiser was called with; the modulated input of the first block, as the model's adapter reads it; or nothing."""
Region = Literal["step", "call", "blocks", "tail"]
"""Every call of a step, whose forecast replaces what the scheduler is handed, after guidance; one call of the denoiser,
each branch for itself; the block stack, without embedders and output layers; or that but its first and last blocks."""
REGIONS: tuple[str, ...] = get_args(Region)
WholeRegion = Literal["step", "call"]
"""Regions that need no knowledge of the model."""
# Values to remember and to watch in a region, the default first. A residual needs a region whose input and output
# live in one space; x0 needs the denoiser's whole output.
_TARGETS_OF = {
    "step": ("x0", "output"),
    "call": ("x0", "output"),
    "blocks": ("residual", "output"),
    "tail": ("residual", "output"),
}
_WHOLE = ("latents", "filtered_latents", "expected_output", "none")
_SIGNALS_OF = {
    "step": _WHOLE,
    "call": _WHOLE,
    "blocks": ("modulated_input", "none"),
    "tail": ("first_residual", "modulated_input", "none"),
}


class Row(NamedTuple):
    """What is known of a step before the run.

    Attributes:
        level: its noise level.
        coordinate: that level on the strategy's axis.
        reuses: whether the schedule forecasts it; None if the policy measures.
        must: "first" or "last" if it is computed whatever the policy says.
        factors: a and b of the remembered value, a · latents + b · output; None if it is no such value.
    """

    level: NoiseLevel
    coordinate: float
    reuses: bool | None
    must: str | None
    factors: tuple[float, float] | None


class RunPlan(NamedTuple):
    """The parts of a strategy that depend on the run.

    Attributes:
        noises: noise fraction at each step; None if the scheduler's algebra is not known.
        schedule: the steps that the policy computes; None if it measures, or the number of steps is unknown. Guards
            may compute more: a step whose inputs changed shape computes.
        forecaster: the strategy's, for this run.
        target: the value to remember.
        strategy: that the plan is of.
        total: number of steps; None if it is not known.
        rows: what is known of each step whose noise level is known.
    """

    noises: tuple[float, ...] | None
    schedule: frozenset[int] | None
    forecaster: Forecaster
    target: str
    strategy: Strategy
    total: int | None
    rows: tuple[Row, ...] = ()

    def row(self, step: int, level: NoiseLevel | None = None) -> Row:
        """What is known of a step at a noise level, which may be unknown."""
        level = level or NoiseLevel(sigma=None, coordinate=float(step))
        reuses = None if self.schedule is None else step not in self.schedule
        is_last = self.total is not None and step >= self.total - 1 and self.strategy.policy.compute_last and not reuses
        coordinate = float(step) if self.strategy.axis == "steps" else level.coordinate
        must = "first" if step == 0 else "last" if is_last else None
        return Row(level, coordinate, reuses, must, level.factors(self.target))


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A step cache: a region to skip, a value to remember, a signal to watch, a policy and a forecaster.

    Args:
        policy: decides between compute and reuse.
        forecaster: gives what stands in for a value that was not computed.
        region: "step", "call", "blocks" or "tail".
        prediction_target: "x0", "output" or "residual"; None takes the region's default. "x0" asked for by name is a
            promise: the run raises if the scheduler's algebra is unknown. As the default it falls back to "output",
            and says so.
        signal: a name of `Signal`; None takes what the policy and the region need.
        first_blocks: region "tail": blocks at the start of the stack that always run, ≥ 0, and ≥ 1 if their
            residual is watched; None is 1.
        last_blocks: region "tail": blocks at its end that always run, ≥ 0; None is 0.
        axis: the forecasters' measure of distance: "noise" (level) or "steps".
        history_dtype: the dtype in which computed values are remembered, "bfloat16" say; None keeps their own.
            Forecasts come back in the values' dtype.
        max_consecutive: longest run of reused steps, ≥ 1; None leaves it to the policy.
        per_sample: let a policy that measures decide for each sample of a batch by itself, so that it gets the picture
            it would get alone, and compute only the samples that need it; False decides for the batch as a whole. A
            schedule decides for all alike in any case.
        shared_cfg_decision: let the first branch of a step (conditional, as a rule) decide for the others. Guidance
            magnifies differences of branches, such as a computed one beside a reused one.
        measure_errors: compare every forecast with the truth once it is known, also if reading the figure back
            stalls an accelerator (one host synchronisation a computed step). On the CPU it is always done.

    Raises:
        UnknownNameError: a name that does not exist.
        ConfigError: a prediction target or signal that the region does not have; a policy that measures, without a
            signal, or that decides by what it has not asked to be measured; numbers of blocks out of range or in
            another region than "tail"; `shared_cfg_decision` in region "step"; a dtype that holds no fractions; a
            policy with a field that hides a part of `Policy`.
    """

    policy: Policy
    forecaster: Forecaster = field(default_factory=Hold)
    region: Annotated[str, Region] = "step"
    prediction_target: Annotated[str, PredictionTarget] | None = None
    signal: Annotated[str, Signal] | None = None
    first_blocks: Index | None = None
    last_blocks: Index | None = None
    axis: Annotated[str, Axis] = "noise"
    history_dtype: torch.dtype | str | None = None
    max_consecutive: Count | None = None
    per_sample: bool = True
    shared_cfg_decision: bool = False
    measure_errors: bool = False

    def __post_init__(self) -> None:
        is_forecaster = isinstance(self.forecaster, Forecaster) and not isinstance(self.forecaster, type)
        for name, fits in (
            ("policy", isinstance(self.policy, Policy) and not isinstance(self.policy, type)),
            ("forecaster", is_forecaster and isinstance(self.forecaster.start(), Memory)),
        ):
            if not fits:
                raise kind_error(self, name, f"be a {name}", getattr(self, name))
        check_reserved_names(self.policy)
        check_fields(self)
        for axis, fitting in (("prediction_target", _TARGETS_OF), ("signal", _SIGNALS_OF)):
            if getattr(self, axis) not in (None, *fitting[self.region]):
                raise field_error(self, axis, f"be {' or '.join(fitting[self.region])} in region {self.region!r}")
        own = self.forecaster.prediction_target
        if own is not None and self.prediction_target not in (None, own):
            kind = type(self.forecaster).__name__
            raise field_error(self, "prediction_target", f"be {own} with the forecaster {kind}")
        if self.forecaster.corrects and self.prediction_target not in (None, "x0"):
            raise field_error(self, "prediction_target", f"be x0 with {self.forecaster}, which corrects the latents")
        if self.region not in (self.forecaster.regions or REGIONS):
            fitting_regions = " or ".join(self.forecaster.regions or REGIONS)
            raise field_error(self, "region", f"be {fitting_regions} with {type(self.forecaster).__name__}")
        if self.chosen_signal not in _SIGNALS_OF[self.region]:
            fitting_regions = " or ".join(region for region, has in _SIGNALS_OF.items() if self.chosen_signal in has)
            raise field_error(self, "region", f"be {fitting_regions} with {type(self.policy).__name__}")
        if self.history_dtype is not None:
            named = self.history_dtype
            dtype = getattr(torch, named.removeprefix("torch."), None) if isinstance(named, str) else named
            if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
                raise field_error(self, "history_dtype", "be a floating-point dtype of 16 bits at least, or its name")
            object.__setattr__(self, "history_dtype", dtype)
        if self.policy.needs_drift and self.signal == "none":
            kind = type(self.policy).__name__
            raise field_error(self, "signal", f"not be 'none' with a policy that measures ({kind})")
        unmeasured = [*(["drift"] if self.chosen_signal == "none" else []), *([] if self.measure_errors else ["error"])]
        if (missing := unasked(self.policy, unmeasured)) is not None:
            raise ConfigError(f"Strategy(policy={self.policy!r}): {missing}")
        if self.shared_cfg_decision and self.region == "step":
            raise field_error(self, "shared_cfg_decision", "be left out in region 'step', which has one decision")
        for name in ("first_blocks", "last_blocks"):
            if getattr(self, name) is not None and self.region != "tail":
                raise field_error(self, name, f"be left out in region {self.region!r}", do="region 'tail' has it")
        if self.first_blocks == 0 and self.chosen_signal == "first_residual":
            raise field_error(self, "first_blocks", "be at least 1 if their residual is watched")

    def for_run(self, total: int | None, levels: Sequence[NoiseLevel]) -> RunPlan:
        """The plan of a run.

        Args:
            total: number of steps; None if it is not known.
            levels: noise level of each step; empty if unknown.

        Raises:
            StateError: a policy that cannot serve a run of so many steps.
        """
        known = levels[:total] if total and total <= len(levels) else ()
        is_known = bool(known) and all(level.sample_weight is not None for level in known)
        noises = tuple(level.coordinate for level in known) if is_known else None
        schedule = self.policy.schedule(total, noises) if total else None
        target, forecaster = self.chosen_target, self.forecaster
        if total is not None and schedule is not None:
            places = noises if self.axis == "noise" else None
            target, corrects = self._remembered(known, places)
            forecaster = forecaster.for_run(total, tuple(sorted(schedule)), places, target)
            left: Any = forecaster
            forecaster = replace(left, corrects=corrects) if forecaster.corrects is None else forecaster
        plan = RunPlan(noises, schedule, forecaster, target, self, total)
        return plan._replace(rows=tuple(map(plan.row, range(len(levels)), levels)))

    def _remembered(self, levels: Sequence[NoiseLevel], places: tuple[float, ...] | None) -> tuple[str, bool]:
        """What a run with a schedule remembers, and whether computed steps correct the latents for the forecasts before
        them, if the forecaster leaves that to the run. A first output without x0 changes it (`Parametrization`).

        | the run, by the first row that fits                  | remembers       | corrects |
        |------------------------------------------------------|-----------------|----------|
        | follows a path of flow matching *                    | velocity        | yes **   |
        | bounds x0, or calls the model twice at a noise level | output          | no       |
        | any other, and each whose target was asked for       | `chosen_target` | x0 * **  |

        * In region "step", if distances are measured in noise (`places`). The first row takes a forecaster that may
          correct, too.
        ** If the solver's steps are known.
        """
        is_asked = self.prediction_target is not None or self.forecaster.prediction_target is not None
        is_along = self.region == "step" and places is not None
        corrects = is_along and any(level.step is not None for level in levels)
        if self.chosen_target == "x0" and not is_asked:
            is_flow = all(level.flow_scale is not None for level in levels)
            if is_along and is_flow and self.forecaster.corrects is not False:
                return "velocity", corrects
            # Solvers that call the model twice at a noise level step along its outputs.
            is_twice = any(a.coordinate == b.coordinate for a, b in pairwise(levels))
            if is_twice or any(level.is_bounded for level in levels):
                return "output", False
        return self.chosen_target, corrects and self.chosen_target == "x0"

    @classmethod
    def default(cls, *, speedup: float | None = None, computed_steps: int | None = None, **unknown: object) -> Strategy:
        """The strategy of `enable` without tuning and without a profile.

        All branches of a step are forecast together, as far as the last computed step has shown it to be safe. Computed
        steps are spread evenly in (1 − noise)^0.4, of the noise that the run begins with, so they are closest where
        guidance bends the path, whatever the scheduler's shift (``python -m bench few_steps``). `dataclasses.replace`
        puts another policy or forecaster into it.

        Args:
            speedup: all steps divided by computed steps, ≥ 1.
            computed_steps: how many steps are computed, ≥ 2. Without either, half of the steps are computed, but at
                least 12, and runs of fewer than 20 steps are computed whole.

        Raises:
            ConfigError: both are given, or one is out of range.
            UnknownNameError: another argument.
        """
        for name in unknown:
            raise UnknownNameError("argument of Strategy.default", name, ("speedup", "computed_steps"))
        given: dict[str, Any] = {"speedup": speedup, "num_computed": computed_steps}
        if speedup is None and computed_steps is None:
            given = {"speedup": 2.0, "min_computed": 12, "min_steps": SHORT_RUN}
        return cls(policy=Spread(**given), forecaster=Blend())

    def open(self, pipeline: object, group: object) -> tuple[Strategy, str, tuple[()]]:
        """The strategy itself, for any pipeline."""
        return self, f"{type(self.policy).__name__} × {type(self.forecaster).__name__} on {self.region}", ()

    @classmethod
    def where_it_fits(cls, policy: Policy, forecaster: Forecaster) -> Strategy:
        """The strategy in region "step", or else in the first region that the forecaster supports."""
        regions = forecaster.regions or tuple(REGIONS)
        region = "step" if "step" in regions else regions[0]
        return cls(policy=policy, forecaster=forecaster, region=region, shared_cfg_decision=region != "step")

    @cached_property
    def decides_by_sample(self) -> bool:
        """True if the samples of a batch may be decided on differently."""
        return self.per_sample and (self.policy.needs_drift or self.policy.needs_error)

    @cached_property
    def chosen_target(self) -> str:
        """The prediction target to be remembered: the one asked for, else the forecaster's own, else the region's."""
        return self.prediction_target or self.forecaster.prediction_target or _TARGETS_OF[self.region][0]

    @cached_property
    def chosen_signal(self) -> str:
        """The signal to be watched: the one asked for, else the policy's own, else the region's if the policy
        measures, else none."""
        chosen = self.signal or self.policy.signal
        if chosen is not None:
            return chosen
        return _SIGNALS_OF[self.region][0] if self.policy.needs_drift else "none"

    @property
    def kept_blocks(self) -> tuple[int, int]:
        """Numbers of blocks at the stack's start and end that always run."""
        if self.region != "tail":
            return 0, 0
        return 1 if self.first_blocks is None else self.first_blocks, self.last_blocks or 0
