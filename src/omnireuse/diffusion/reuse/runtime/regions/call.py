"""Region `call`: one call of the denoiser is skipped, each branch with a history of its own."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.runtime.algebra import OutputAlgebra
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall, Emit, input_of, measures, watched
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.track import layout_of
from omnireuse.diffusion.reuse.runtime.verdict import Verdict
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["CallRegion"]


class CallRegion:
    """One decision a call. Whatever tensors the denoiser returns, in whatever structure, are forecast one by one."""

    def __init__(self, strategy: Strategy, emit: Emit) -> None:
        self._strategy = strategy
        self._emit = emit
        self._algebra = OutputAlgebra(strategy)

    def call(self, call: DenoiserCall) -> Any:
        """The computed output, or one of the same structure made of forecasts."""
        run, key = call.run, (call.denoiser, call.branch)
        started = perf_counter()
        given = input_of(call.args, call.kwargs)
        signal = watched(self._strategy, call)
        verdict = Verdict(run, key, call.branch, call.order, signal, layout_of(*call.tensors), self._algebra.veto(run))
        if verdict.reuse:
            leaves, structure = run.placeholders[key]
            outputs = iter(self._forecast(run, verdict, given, leaves))
            leaves = [next(outputs) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            result = pytree.tree_unflatten(leaves, structure)
        else:
            result = call.compute()
            started = perf_counter()
            leaves, structure = pytree.tree_flatten(result)
            self._remember(run, verdict, given, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
            run.placeholders[key] = ([_shape_only(leaf) for leaf in leaves], structure)
        verdict.host_seconds += perf_counter() - started
        self._emit(verdict.conclude())
        return result

    def _forecast(
        self, run: Run, verdict: Verdict, given: torch.Tensor | None, leaves: Sequence[Any]
    ) -> list[torch.Tensor]:
        dtypes = [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)]
        values = verdict.foretell()
        return [
            self._algebra.output(run, self._sample(run, given, value.shape), value, dtype)
            for value, dtype in zip(values, dtypes, strict=True)
        ]

    def _remember(self, run: Run, verdict: Verdict, given: torch.Tensor | None, outputs: list[torch.Tensor]) -> None:
        for output in outputs:
            self._algebra.settle(run, self._sample(run, given, output.shape), output)
        values = [self._algebra.value(run, self._sample(run, given, output.shape), output) for output in outputs]
        known = [value for value in values if value is not None]
        if outputs and len(known) == len(outputs):
            first = self._sample(run, given, outputs[0].shape), outputs[0], known[0]
            measure = measures(self._strategy, outputs[0])
            verdict.learn(known, lambda: self._algebra.scales(run, *first), measure)
        else:
            verdict.track.forget()

    @staticmethod
    def _sample(run: Run, given: torch.Tensor | None, shape: torch.Size) -> torch.Tensor | None:
        # The call's own input is what this output belongs to (masks and callbacks may have changed the latents since
        # the scheduler returned them); a model that is also fed conditioning channels leaves only the scheduler's word.
        if given is not None and given.shape == shape:
            return given if run.level.input_scale == 1.0 else given / run.level.input_scale
        if run.latents is not None and run.latents.shape == shape:
            return run.latents
        return None

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The output as it is: this region has done its work in the calls."""
        return output

    def undo(self) -> None:
        """Nothing stands between objects."""


def _shape_only(leaf: Any) -> Any:
    # Enough to rebuild the structure, without keeping the tensor alive.
    return leaf.new_empty(0) if isinstance(leaf, torch.Tensor) else leaf
