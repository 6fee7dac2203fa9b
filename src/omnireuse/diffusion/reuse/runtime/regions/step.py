"""Region `step`: all calls of a step are skipped, and what the scheduler is handed is forecast.

The forecast is made after guidance, so one history serves all branches and its error is the error that matters. On a
reused step the denoiser's calls return their last outputs: the pipeline's guidance arithmetic runs on them, and its
result is replaced before the scheduler sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.runtime.algebra import OutputAlgebra
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall, Emit, measures, watched
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.samples import row_of, with_rows
from omnireuse.diffusion.reuse.runtime.track import layout_of
from omnireuse.diffusion.reuse.runtime.verdict import Verdict
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import UnsupportedModelError

__all__ = ["StepRegion"]

logger = logging.getLogger("omnireuse")


class StepRegion:
    """One decision a step for each sample, or for the batch, taken at the step's first call of a denoiser."""

    def __init__(self, strategy: Strategy, emit: Emit) -> None:
        self._strategy = strategy
        self._emit = emit
        self._algebra = OutputAlgebra(strategy)

    def call(self, call: DenoiserCall) -> Any:
        """The computed output; for reused samples the last one, whose values nobody will use."""
        run = call.run
        if run.pending is None:
            run.pending = self._open(call)
        key = (call.denoiser, call.branch)
        reused = [verdict.sample for verdict in run.pending.verdicts if verdict.reuse]
        if reused and key not in run.placeholders:
            # The last computed step did not have this branch, and only computing it tells its shape.
            logger.info(
                "step %d: branch %s sets in and is computed although the step is reused", run.index, call.branch
            )
            reused = []
        if reused and len(reused) == len(run.pending.verdicts):
            return run.placeholders[key]
        output = self._compute_without(call, reused, run.placeholders[key]) if reused else call.compute()
        if (kinds := _kinds_of(output)) > 1:
            raise UnsupportedModelError(
                f"Strategy(region='step'): {type(call.module).__name__} must return one kind of latents, got {kinds}, "
                f"of which the scheduler is handed one; use region='call', which forecasts all of them, or 'blocks'"
            )
        run.placeholders[key] = output
        return output

    def _open(self, call: DenoiserCall) -> _Step:
        run = call.run
        by_sample = self._strategy.decides_by_sample
        if by_sample and run.samples is None:
            # Guidance may have stacked its branches in one call: how many samples there are is known when the scheduler
            # has been seen with them. The first step computes, so it can wait for that.
            return _Step(call, [])
        divided = by_sample and run.samples is not None and run.samples > 1 and call.batch % run.samples == 0
        # Another expert foretells another sample: what the one before it has shown is of another kind.
        layout = (call.denoiser, layout_of(*call.tensors))
        signal, veto = watched(self._strategy, call), self._algebra.veto(run)
        verdicts = []
        for sample in range(run.samples) if divided and run.samples else [None]:
            own = signal if signal is None or sample is None else signal[sample :: run.samples]
            verdicts.append(Verdict(run, "step", "step", 0, own, layout, veto, sample))
        return _Step(call, verdicts)

    @staticmethod
    def _compute_without(call: DenoiserCall, reused: list[int | None], last: Any) -> Any:
        samples = call.run.samples or 1
        rows = [row for row in range(call.batch) if row % samples not in reused]
        computed, structure = pytree.tree_flatten(call.compute_rows(rows))
        whole = [
            with_rows(before, rows, now) if isinstance(before, torch.Tensor) else now
            for before, now in zip(pytree.tree_leaves(last), computed, strict=True)
        ]
        return pytree.tree_unflatten(whole, structure)

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """For reused samples the forecast; what was computed is remembered and handed on, corrected or as it is."""
        step: _Step | None = run.pending
        if step is None:
            return output
        if run.samples is None and self._strategy.decides_by_sample:
            run.samples = sample.shape[0]
            step = self._open(step.call)
        parts = [
            self._conclude(run, verdict, row_of(output, verdict.sample), row_of(sample, verdict.sample))
            for verdict in step.verdicts
        ]
        if not any(verdict.reuse or verdict.corrected for verdict in step.verdicts):
            return output
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _conclude(self, run: Run, verdict: Verdict, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        started = perf_counter()
        # Guidance that sets in or ends changes what is handed over: what was remembered is of another kind then.
        other_kind = run.calls_when_computed.get(verdict.sample, run.calls) != run.calls
        if verdict.reuse:
            (value,) = verdict.foretell()
            output = self._algebra.output(run, sample, value, output.dtype)
        else:
            if other_kind:
                verdict.track.forget()
            self._remember(run, verdict, output, sample)
            if corrected := verdict.correct():
                output = self._algebra.output(run, sample, corrected[0], output.dtype)
        verdict.host_seconds += perf_counter() - started
        self._emit(verdict.conclude())
        if verdict.reuse and other_kind:
            verdict.track.forget()
        return output

    def _remember(self, run: Run, verdict: Verdict, output: torch.Tensor, sample: torch.Tensor) -> None:
        run.calls_when_computed[verdict.sample] = run.calls
        self._algebra.settle(run, sample, output)
        value = self._algebra.value(run, sample, output)
        if value is None:
            verdict.track.forget()
        else:
            verdict.learn(
                [value], lambda: self._algebra.scales(run, sample, output, value), measures(self._strategy, output)
            )

    def undo(self) -> None:
        """Nothing stands between objects."""


@dataclass
class _Step:
    """What was decided at a step's first call; no verdicts where that must wait for the scheduler."""

    call: DenoiserCall
    verdicts: list[Verdict]


def _kinds_of(output: Any) -> int:
    # Entries with tensors: one may be a list of one tensor an image.
    entries = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple) else (output,)
    return sum(any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(entry)) for entry in entries)
