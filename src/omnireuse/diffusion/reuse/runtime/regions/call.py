"""Region `call`: one call of the denoiser is skipped, each branch with a history of its own."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.reuse.runtime.algebra import OutputAlgebra
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall, Emit, measures, watched
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.samples import row_of
from omnireuse.diffusion.reuse.runtime.track import layout_of
from omnireuse.diffusion.reuse.runtime.verdict import Verdict
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["CallRegion"]

_NEGATED = {
    "HiDreamImageTransformer2DModel",
    "Lumina2Transformer2DModel",
    "LuminaNextDiT2DModel",
    "NucleusMoEImageTransformer2DModel",
    "ZImageTransformer2DModel",
}
"""Denoisers whose pipelines hand the scheduler the negative of what they return."""


class CallRegion:
    """One decision a call for each row of its batch, or for all of them.

    Whatever tensors the denoiser returns, in whatever structure, are forecast one by one.
    """

    def __init__(self, strategy: Strategy, emit: Emit) -> None:
        self._strategy = strategy
        self._emit = emit
        self._algebra = OutputAlgebra(strategy)

    def call(self, call: DenoiserCall) -> Any:
        """The computed output, or one of the same structure made of forecasts, row by row."""
        run, key = call.run, (call.denoiser, call.branch)
        by_row = self._strategy.decides_by_sample and call.batch > 1 and key not in run.undivided
        signal = watched(self._strategy, call)
        verdicts = [self._verdict(call, signal, row) for row in (range(call.batch) if by_row else [None])]
        computing = [verdict for verdict in verdicts if not verdict.reuse]
        computed: list[torch.Tensor] = []
        if computing:
            partly = len(computing) < len(verdicts)
            rows = [verdict.sample for verdict in computing if verdict.sample is not None]
            result = call.compute_rows(rows) if partly else call.compute()
            leaves, structure = pytree.tree_flatten(result)
            run.placeholders[key] = ([_shape_only(leaf) for leaf in leaves], structure)
            computed = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if by_row and not partly and any(leaf.ndim == 0 or leaf.shape[0] != call.batch for leaf in computed):
                # Decided anew for the batch: what has no rows cannot be put together from some.
                run.undivided.add(key)
                verdicts = computing = [self._verdict(call, signal, None)]
        parts = []
        for verdict in verdicts:
            if verdict.reuse:
                parts.append(self._forecast(call, verdict))
            else:
                position = computing.index(verdict) if verdict.sample is not None else None
                outputs = [row_of(leaf, position) for leaf in computed]
                self._remember(call, verdict, outputs)
                parts.append(self._corrected(call, verdict) or outputs)
            self._emit(verdict.conclude())
        if len(computing) == len(verdicts) and not any(verdict.corrected for verdict in verdicts):
            return result
        leaves, structure = run.placeholders[key]
        whole = iter(part[0] if len(part) == 1 else torch.cat(part) for part in zip(*parts, strict=True))
        leaves = [next(whole) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, structure)

    def _verdict(self, call: DenoiserCall, signal: torch.Tensor | None, row: int | None) -> Verdict:
        own = None if signal is None else row_of(signal, row)
        key, veto = (call.denoiser, call.branch), self._algebra.veto(call.run)
        return Verdict(call.run, key, call.branch, call.order, own, layout_of(*call.tensors), veto, row)

    def _forecast(self, call: DenoiserCall, verdict: Verdict) -> list[torch.Tensor]:
        started = perf_counter()
        outputs = self._outputs(call, verdict, verdict.foretell())
        verdict.host_seconds += perf_counter() - started
        return outputs

    def _corrected(self, call: DenoiserCall, verdict: Verdict) -> list[torch.Tensor] | None:
        values = verdict.correct()
        return None if values is None else self._outputs(call, verdict, values)

    def _outputs(self, call: DenoiserCall, verdict: Verdict, values: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves, _ = call.run.placeholders[call.denoiser, call.branch]
        dtypes = [leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)]
        samples = _samples(call, verdict, [value.shape for value in values])
        outputs = [
            self._algebra.output(call.run, sample, value, dtype)
            for sample, value, dtype in zip(samples, values, dtypes, strict=True)
        ]
        if _is_negated(call):
            outputs = [output.neg_() for output in outputs]
        return outputs

    def _remember(self, call: DenoiserCall, verdict: Verdict, outputs: list[torch.Tensor]) -> None:
        started = perf_counter()
        run = call.run
        if _is_negated(call):
            outputs = [output.neg() for output in outputs]
        samples = _samples(call, verdict, [output.shape for output in outputs])
        for sample, output in zip(samples, outputs, strict=True):
            self._algebra.settle(run, sample, output)
        values = [self._algebra.value(run, sample, output) for sample, output in zip(samples, outputs, strict=True)]
        known = [value for value in values if value is not None]
        if outputs and len(known) == len(outputs):
            measure = measures(self._strategy, outputs[0])
            verdict.learn(known, lambda: self._algebra.scales(run, samples[0], outputs[0], known[0]), measure)
        else:
            verdict.track.forget()
        verdict.host_seconds += perf_counter() - started

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The output as it is: this region has done its work in the calls."""
        return output

    def undo(self) -> None:
        """Nothing stands between objects."""


def _is_negated(call: DenoiserCall) -> bool:
    return type(call.module).__name__ in _NEGATED


def _samples(call: DenoiserCall, verdict: Verdict, shapes: Sequence[torch.Size]) -> list[torch.Tensor | None]:
    """The sample that each output belongs to: the next tensor of its shape among what the call was given.

    The call's own latents come first, because masks and callbacks may have changed them since the scheduler returned
    them; then the scheduler's word, for models that are also fed conditioning channels; then whatever else the call
    was given, for models of several kinds of latents, such as frames and sound.
    """
    scale, row = call.run.level.input_scale, verdict.sample
    own = call.latents if scale == 1.0 else [latent / scale for latent in call.latents]
    told = [] if call.run.latents is None else [call.run.latents]
    others = [tensor for tensor in call.tensors if tensor is not call.input]
    left = [row_of(each, row) for each in (*own, *told, *others) if row is None or each.shape[:1] == (call.batch,)]
    samples: list[torch.Tensor | None] = []
    for shape in shapes:
        index = next((i for i, each in enumerate(left) if each.shape == shape), None)
        samples.append(None if index is None else left.pop(index))
    return samples


def _shape_only(leaf: Any) -> Any:
    # Enough to rebuild the structure, without keeping the tensor alive.
    return leaf.new_empty(0) if isinstance(leaf, torch.Tensor) else leaf
