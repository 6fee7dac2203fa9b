"""The memory of one branch of one generation between its steps, and its learning from computed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from omnireuse import messages
from omnireuse.errors import ConfigError, StateError
from omnireuse.forecasters.base import Forecaster, Memory, transformed
from omnireuse.forecasters.gap import Gap
from omnireuse.loop.agreement import Agreement
from omnireuse.loop.strategy import Strategy
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.noise.signals import change_of, magnitude

__all__ = ["BranchState", "Scales", "measures_errors", "refuse_gradients"]

Scales = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""A function that measures the mean magnitudes of the output and of x0, in the units of the remembered value."""


def refuse_gradients(tensors: Iterable[torch.Tensor]) -> None:
    """Raise a StateError if autograd is on and one of these tensors needs a gradient."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise StateError(messages.GRADIENT_CUT)


def measures_errors(strategy: Strategy, value: torch.Tensor) -> bool:
    """True if forecast errors are measured: if needed, or if reading one back stalls no device."""
    return strategy.measure_errors or strategy.policy.needs_error or value.device.type == "cpu"


@dataclass(kw_only=True, eq=False)
class BranchState:
    """The state of one branch.

    Attributes:
        strategy, agreement: of the generation.
        forecaster: starts its memories.
        order: place of its call among the step's calls of the denoiser.
        policy: state of the policy.
        memories: of each remembered value; empty before the first.
        primed: whether every value can be forecast.
        dtypes, shapes: of the values as they were computed.
        output_dtypes: of the model's last computed outputs.
        layout: of the inputs that the memories belong to.
        step: the last one that it was carried out at, computed or reused; None before the first.
        signal: the watched tensor of the step that drift is measured from.
        computed: signal and values of the last computed step, if the output's change is estimated from the signal's.
        rate: relative change of the values over that of the signal between the last two computed steps.
        error: of the last forecast that was compared with the truth.
        heading: mean `Memory.heading` of the last computed values; None if forecasts were not measured then.
        consecutive: reused steps since the last computed one.
    """

    strategy: Strategy
    forecaster: Forecaster
    agreement: Agreement
    order: int
    policy: Any = None
    memories: list[Memory] = field(default_factory=list)
    primed: bool = False
    dtypes: list[torch.dtype] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)
    output_dtypes: list[torch.dtype] = field(default_factory=list)
    layout: Hashable = None
    step: int | None = None
    signal: torch.Tensor | None = None
    computed: tuple[torch.Tensor, Sequence[torch.Tensor]] | None = None
    rate: float | None = None
    error: float | None = None
    heading: float | None = None
    consecutive: int = 0

    def __post_init__(self) -> None:
        if self.policy is None:
            self.policy = self.strategy.policy.start()

    def forget(self) -> None:
        """Drop every tensor and start anew, as after a change of layout or of guidance."""
        self.policy, self.memories, self.signal, self.computed = self.strategy.policy.start(), [], None, None
        self.rate = self.error = self.heading = None
        self.primed, self.consecutive = False, 0

    def transformed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> BranchState:
        """An independent copy in which every tensor is `change(tensor)`."""
        kept = {name: getattr(self, name) for name in ("memories", "signal", "computed")}
        return replace(self, **transformed(kept, change))

    def drift(self, signal: torch.Tensor) -> float | None:
        """Relative change of the signal since it was remembered; None if there is nothing to compare it with."""
        before = self.signal
        if before is None or (before.shape, before.dtype, before.device) != (signal.shape, signal.dtype, signal.device):
            return None
        if self.strategy.chosen_signal != "expected_output":
            return self.agreement.ratio(change_of(signal, before))
        # The output is not known before it is computed: its change is expected from that of the latents.
        return None if self.rate is None else self.agreement.ratio(change_of(signal, before)) * self.rate

    def gap_before(self, index: int, levels: Sequence[NoiseLevel], target: str | None) -> Gap | None:
        """The reused steps since the branch last computed; None if there are none, or nothing corrects them.

        Args:
            index: of the present step.
            levels: noise level of each step.
            target: the remembered one.
        """
        if self.strategy.region != "step" or target not in ("x0", "velocity") or not self.forecaster.corrects:
            return None
        first, by_number = index - self.consecutive, self.strategy.axis == "steps"
        if not first < index < len(levels):
            return None
        places = [float(step) if by_number else levels[step].coordinate for step in range(first, index)]
        steps = [each.step if target == "x0" else each.velocity_step for each in levels[first : index + 1]]
        return Gap.between(target, places, steps, levels[index].coordinate / levels[first - 1].coordinate)

    def observe(
        self,
        coordinate: float,
        values: Sequence[torch.Tensor],
        *,
        signal: torch.Tensor | None,
        scales: Scales,
        gap: Gap | None,
        forecasts: Callable[[], list[torch.Tensor]],
    ) -> tuple[float | None, list[torch.Tensor] | None]:
        """Compare the forecast for computed values with them, and remember them.

        Args:
            coordinate: of the values.
            values: the computed ones.
            signal: watched at this step; None if nothing was.
            scales: units of errors.
            gap: the reused steps that these values end, if their effect is to be corrected.
            forecasts: gives the forecasts for these values.

        Returns:
            The forecast's error relative to the output, if it was measured; the replacement of the values, or None
            for these values themselves.

        Raises:
            StateError: a value that needs a gradient.
        """
        refuse_gradients(values)
        error = self.heading = None
        if self.primed and measures_errors(self.strategy, values[0]):
            error = self._measure_error(forecasts(), values, scales)
        self.start_memories(values)
        dtype = self.strategy.history_dtype
        if isinstance(dtype, torch.dtype):
            values = [value.to(dtype) if value.is_floating_point() else value for value in values]
        signal = self.signal if signal is None else signal
        if signal is not None and self.strategy.chosen_signal == "expected_output":
            self._measure_rate(signal, values)
        found = []
        for memory, value in zip(self.memories, values, strict=True):
            if gap is None:
                memory.observe(coordinate, value)
                found.append(memory.correction(coordinate))
            else:
                found.append(memory.correct_interval(gap, coordinate, value))
        self.primed = all(memory.primed for memory in self.memories)
        corrected = [each for each in found if each is not None]
        # All of them or none: they were observed together, at the same steps.
        pairs = zip(corrected, self.dtypes, strict=True)
        return error, [value.to(dtype) for value, dtype in pairs] if corrected else None

    def shape_error(self, forecast: object, shape: Sequence[int]) -> ConfigError:
        """The error for a forecast of another shape than the values', which arithmetic would broadcast."""
        got = tuple(forecast.shape) if isinstance(forecast, torch.Tensor) else type(forecast).__name__
        return ConfigError(
            f"{type(self.forecaster).__name__}: a forecast must have the shape of the values that were observed, "
            f"{tuple(shape)}, got {got}; omnireuse.testing.check_forecaster finds such faults"
        )

    def start_memories(self, values: Sequence[torch.Tensor]) -> None:
        """Start the memory of each value if there is none."""
        if len(self.memories) != len(values):
            branch = self.order if self.order < self.forecaster.branches else 0
            self.memories, self.primed = [self.forecaster.start(branch) for _ in values], False
        self.dtypes, self.shapes = [value.dtype for value in values], [value.shape for value in values]

    def _measure_error(
        self, forecasts: Sequence[torch.Tensor], values: Sequence[torch.Tensor], scales: Scales
    ) -> float | None:
        """Keep the heading, and the forecasts' error relative to x0 for the policy; return that relative to the output,
        None if forecasts and values do not fit."""
        if [forecast.shape for forecast in forecasts] != [value.shape for value in values]:
            return None
        of_output, of_x0 = scales()
        headings = [memory.heading(value) for memory, value in zip(self.memories, values, strict=True)]
        heading = torch.stack(headings).mean()
        off = magnitude(*(f.float() - v.float() for f, v in zip(forecasts, values, strict=True)))
        if self.strategy.policy.needs_error and not self.agreement.is_alone:
            # Equal on all ranks, whatever the sizes of their shards.
            count = sum(value.numel() for value in values)
            self.error = self.agreement.ratio(torch.stack((off, of_x0)) * count)
            numerator, denominator, cosine = torch.stack((off, of_output, heading)).tolist()
        else:
            # One read for all, for each waits for the device.
            numerator, denominator, cosine, x0 = torch.stack((off, of_output, heading, of_x0)).tolist()
            self.error = numerator / x0 if x0 else math.inf if numerator else 0.0
        self.heading = None if math.isnan(cosine) else cosine
        return numerator / denominator if denominator else None

    def _measure_rate(self, signal: torch.Tensor, values: Sequence[torch.Tensor]) -> None:
        """Keep by how much the values change for a change of the signal."""
        if self.computed is not None:
            before, computed = self.computed
            moved = self.agreement.ratio(change_of(signal, before))
            changed = torch.stack([change_of(now, old) for now, old in zip(values, computed, strict=True)]).sum(0)
            self.rate = self.agreement.ratio(changed) / moved if moved else None
        self.computed = (signal, values)
