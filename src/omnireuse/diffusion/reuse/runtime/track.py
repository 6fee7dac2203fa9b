"""What one branch remembers during one run, and the guards that every policy shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import torch

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.forecasters import Corrector, Memory
from omnireuse.diffusion.reuse.policy import StepView
from omnireuse.diffusion.reuse.signals import change_of
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["Track", "layout_of"]


def layout_of(*values: object) -> Hashable:
    """Shape, dtype and device of every tensor among the values: what must not change between remembering and
    reusing."""
    return tuple((tuple(v.shape), v.dtype, v.device) for v in values if isinstance(v, torch.Tensor))


class Track:
    """The state of one branch: policy state, forecaster memories, last signal, layout, length of the reuse run.

    Args:
        remember: starts the memory of one value.
    """

    def __init__(self, strategy: Strategy, agreement: Agreement, remember: Callable[[], Memory]) -> None:
        self._strategy = strategy
        self._remember = remember
        self._agreement = agreement
        self._policy_state = strategy.policy.start()
        self._memories: list[Memory] | None = None
        self._layout: Hashable = None
        self._signal: torch.Tensor | None = None
        self._fresh: torch.Tensor | None = None
        self._computes_last = bool(getattr(strategy.policy, "compute_last", True))
        self._expects_output = strategy.chosen_signal == "expected_output"
        self._computed: tuple[torch.Tensor, Sequence[torch.Tensor]] | None = None
        self._dtypes: list[torch.dtype] = []
        self._consecutive = 0
        self.rate: float | None = None
        """Relative change of the remembered value over that of the signal, between the last two computed steps."""
        self.error: float | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of tensor storage held by forecasters and signals."""
        held = sum(memory.kept_bytes for memory in self._memories or ())
        # Not counted: the last computed values, which are the very tensors that the forecasters keep.
        signals = [self._signal, self._computed and self._computed[0]]
        kept = {signal.data_ptr(): signal.nbytes for signal in signals if signal is not None}
        return held + sum(kept.values())

    def drift_to(self, signal: torch.Tensor | None) -> float | None:
        """Relative change since the previous step's signal, reused or not; the new signal takes its place. For a policy
        that measures since the last computed step it does so only if this step computes. Where the output is watched,
        its expected change, once a rate is known."""
        if signal is None:
            return None
        before, self._fresh = self._signal, signal.detach().clone()
        if not self._strategy.drifts_since_computed:
            self._signal, self._fresh = self._fresh, None
        if before is None or layout_of(before) != layout_of(signal):
            return None
        if self._expects_output and self.rate is None:
            return None
        change = self._agreement.ratio(change_of(signal, before))
        return change * self.rate if self._expects_output and self.rate is not None else change

    def judge(self, off: torch.Tensor, size: torch.Tensor, count: int) -> None:
        """Take the error of a forecast, the mean magnitude it is relative to, and over how many elements both were
        taken; what a policy will see of it is equal on all ranks."""
        if self._strategy.policy.needs_error:
            self.error = self._agreement.ratio(torch.stack((off, size)) * count)
        elif off.device.type == "cpu" or self._strategy.measure_errors:
            self.error = float(off / size)

    def decide(self, view: StepView, layout: Hashable, lead: bool | None = None) -> tuple[bool, str]:
        """Whether to reuse, and who said so: the policy, or the branch that leads. Guards overrule both."""
        changed = self._layout is not None and layout != self._layout
        if changed:
            self.forget()
        self._layout = layout
        # The policy is asked first and always, so that one that cannot serve this run says so at its first step.
        wanted = self._strategy.policy.wants_reuse(self._policy_state, view) if lead is None else lead
        reason = self._guard(view, changed)
        return (wanted, "policy" if lead is None else "together") if reason is None else (False, reason)

    def _guard(self, view: StepView, changed: bool) -> str | None:
        longest = self._strategy.max_consecutive
        if view.index == 0:
            return "first"
        if view.total is not None and view.index >= view.total - 1 and self._computes_last:
            return "last"
        if self._memories is None or not all(memory.primed for memory in self._memories):
            return "layout" if changed else "unprimed"
        if view.drift is not None and not math.isfinite(view.drift):
            return "nonfinite"
        if longest is not None and self._consecutive >= longest:
            return "longest"
        return None

    def settle(self, view: StepView, reused: bool) -> None:
        """Tell the policy what was really done."""
        self._policy_state = self._strategy.policy.after(self._policy_state, view, reused)
        self._consecutive = self._consecutive + 1 if reused else 0
        if self._fresh is not None and not reused:
            self._signal = self._fresh
        self._fresh = None

    def observe(self, at: float, values: Sequence[torch.Tensor]) -> None:
        """Remember the computed values; the track owns the tensors from here on."""
        if self._memories is None or len(self._memories) != len(values):
            self._memories = [self._remember() for _ in values]
        self._dtypes = [value.dtype for value in values]
        kept_as = self._strategy.history_dtype
        if isinstance(kept_as, torch.dtype):
            values = [value.to(kept_as) if value.is_floating_point() else value for value in values]
        signal = self._signal if self._fresh is None else self._fresh
        if self._expects_output and signal is not None:
            self._measure_rate(signal, values)
        for memory, value in zip(self._memories, values, strict=True):
            memory.observe(at, value)

    def _measure_rate(self, signal: torch.Tensor, values: Sequence[torch.Tensor]) -> None:
        if self._computed is not None:
            before, computed = self._computed
            moved = self._agreement.ratio(change_of(signal, before))
            changed = torch.stack([change_of(now, old) for now, old in zip(values, computed, strict=True)]).sum(0)
            self.rate = self._agreement.ratio(changed) / moved if moved else None
        self._computed = (signal, values)

    def predict(self, at: float) -> list[torch.Tensor] | None:
        """What the forecasters expect; None before anything was observed. The tensors are read-only."""
        if self._memories is None or not all(memory.primed for memory in self._memories):
            return None
        forecasts = [memory.predict(at) for memory in self._memories]
        return [value.to(dtype) for value, dtype in zip(forecasts, self._dtypes, strict=True)]

    def corrected(self, at: float) -> list[torch.Tensor] | None:
        """What to hand on in place of the values just observed; None for these values themselves."""
        memories = [memory for memory in self._memories or () if isinstance(memory, Corrector)]
        found = [value for memory in memories if (value := memory.corrected(at)) is not None]
        # All of them or none: they were observed together, at the same steps.
        return [value.to(dtype) for value, dtype in zip(found, self._dtypes, strict=True)] if found else None

    def forget(self) -> None:
        """Drop every tensor and start anew, as after a change of layout or of guidance."""
        self._policy_state = self._strategy.policy.start()
        self._memories = None
        self._signal = self._computed = None
        self._consecutive = 0
        self.rate = self.error = None
