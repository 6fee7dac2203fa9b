"""Region `step`: all calls of a step are skipped, and what the scheduler is handed is forecast.

The forecast is made after guidance, so one history serves all branches and its error is the error that matters. On a
reused step the denoiser's calls return their last outputs: the pipeline's guidance arithmetic runs on them, and its
result is replaced before the scheduler sees it.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

import torch

from omnireuse.diffusion.reuse.runtime.algebra import OutputAlgebra
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall, Emit, measures, watched
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.track import layout_of
from omnireuse.diffusion.reuse.runtime.verdict import Verdict
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["StepRegion"]

logger = logging.getLogger("omnireuse")


class StepRegion:
    """One decision a step, taken at the step's first call of a denoiser."""

    def __init__(self, strategy: Strategy, emit: Emit) -> None:
        self._strategy = strategy
        self._emit = emit
        self._algebra = OutputAlgebra(strategy)

    def call(self, call: DenoiserCall) -> Any:
        """The computed output; on a reused step the last one, whose values nobody will use."""
        run = call.run
        if run.pending is None:
            signal = watched(self._strategy, call)
            run.pending = Verdict(run, "step", "step", 0, signal, layout_of(*call.tensors), self._algebra.veto(run))
        key = (call.denoiser, call.branch)
        if run.pending.reuse:
            if key in run.placeholders:
                return run.placeholders[key]
            # The last computed step did not have this branch, and only computing it tells its shape.
            logger.info(
                "step %d: branch %s sets in and is computed although the step is reused", run.index, call.branch
            )
        output = call.compute()
        run.placeholders[key] = output
        return output

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """On a reused step the forecast; on a computed one `output` itself, which is remembered."""
        verdict: Verdict | None = run.pending
        if verdict is None:
            return output
        started = perf_counter()
        # Guidance that sets in or ends changes what is handed over: what was remembered is of another kind then.
        other_kind = run.calls_when_computed not in (None, run.calls)
        result = output
        if verdict.reuse:
            (value,) = verdict.foretell()
            result = self._algebra.output(run, sample, value, output.dtype)
        else:
            if other_kind:
                verdict.track.forget()
            self._remember(run, verdict, output, sample)
        verdict.host_seconds += perf_counter() - started
        self._emit(verdict.conclude())
        if verdict.reuse and other_kind:
            verdict.track.forget()
        return result

    def _remember(self, run: Run, verdict: Verdict, output: torch.Tensor, sample: torch.Tensor) -> None:
        run.calls_when_computed = run.calls
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
