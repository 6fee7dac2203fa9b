"""What is measured of a branch: the drift of its signal, the error of its forecasts, and how the two are related."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from omnireuse.diffusion.reuse.agreement import Agreement
from omnireuse.diffusion.reuse.branch_state import BranchState
from omnireuse.diffusion.reuse.signals import change_of, magnitude
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["Scales", "drift_of", "measure_error", "measure_rate", "measures_errors", "own_magnitude"]

Scales = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""Gives the mean magnitudes of the output and of x0, in the units of what is remembered."""


def drift_of(strategy: Strategy, agreement: Agreement, state: BranchState, signal: torch.Tensor) -> float | None:
    """Relative change of the signal since the branch remembered it; None where there is nothing to compare it with."""
    before = state.signal
    if before is None or (before.shape, before.dtype, before.device) != (signal.shape, signal.dtype, signal.device):
        return None
    if strategy.chosen_signal != "expected_output":
        return agreement.ratio(change_of(signal, before))
    # The output is not known before it is computed: its change is expected from that of the latents.
    return None if state.rate is None else agreement.ratio(change_of(signal, before)) * state.rate


def measures_errors(strategy: Strategy, value: torch.Tensor) -> bool:
    """Whether forecast errors are measured: where asked for or needed, and where reading one back stalls no device."""
    return strategy.measure_errors or strategy.policy.needs_error or value.device.type == "cpu"


def measure_error(
    strategy: Strategy,
    agreement: Agreement,
    state: BranchState,
    forecasts: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    scales: Scales,
) -> float | None:
    """Note the forecasts' error for the policy.

    Returns:
        The error relative to the output, for the event; None where forecasts and values do not fit.
    """
    if len(forecasts) != len(values) or any(f.shape != v.shape for f, v in zip(forecasts, values, strict=True)):
        return None
    of_output, of_x0 = scales()
    off = magnitude(*(f.float() - v.float() for f, v in zip(forecasts, values, strict=True)))
    if strategy.policy.needs_error:
        # Equal on all ranks, whatever the sizes of their shards.
        count = sum(value.numel() for value in values)
        state.error = agreement.ratio(torch.stack((off, of_x0)) * count)
    else:
        state.error = float(off / of_x0)
    numerator, denominator = torch.stack((off, of_output)).tolist()
    return numerator / denominator if denominator else None


def measure_rate(
    strategy: Strategy,
    agreement: Agreement,
    state: BranchState,
    signal: torch.Tensor | None,
    values: Sequence[torch.Tensor],
) -> None:
    """Note by how much the values change for a change of the signal, where their change is expected from it."""
    if strategy.chosen_signal != "expected_output" or signal is None:
        return
    if state.computed is not None:
        before, computed = state.computed
        moved = agreement.ratio(change_of(signal, before))
        changed = torch.stack([change_of(now, old) for now, old in zip(values, computed, strict=True)]).sum(0)
        state.rate = agreement.ratio(changed) / moved if moved else None
    state.computed = (signal, values)


def own_magnitude(values: Sequence[torch.Tensor]) -> Scales:
    """Scales for values that are no outputs: their own magnitude."""

    def scales() -> tuple[torch.Tensor, torch.Tensor]:
        size = magnitude(*values)
        return size, size

    return scales
