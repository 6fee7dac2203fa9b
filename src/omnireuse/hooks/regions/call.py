"""Region `call`: one call of the denoiser is skipped, each branch with a history of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from omnireuse.hooks.regions.cuts import Cuts, has_rows
from omnireuse.hooks.regions.rows import flattened, unflattened
from omnireuse.hooks.run import DenoiserCall, Region
from omnireuse.loop.strategy import Strategy

__all__ = ["CallRegion"]

_NEGATED = {
    "HiDreamImageTransformer2DModel",
    "Lumina2Transformer2DModel",
    "LuminaNextDiT2DModel",
    "NucleusMoEImageTransformer2DModel",
    "ZImageTransformer2DModel",
}
"""Denoisers whose pipelines give the scheduler the negative of what they return."""


class CallRegion(Region):
    """One decision a call for each row of its batch, or for all of them.

    Whatever tensors the denoiser returns, in whatever structure, are forecast one by one.
    """

    def __init__(self, strategy: Strategy, cuts: Cuts) -> None:
        self._strategy, self._cuts = strategy, cuts
        self._forms: dict[Hashable, tuple[list[Any], Any]] = {}
        """Of the results of each denoiser, branch and options: leaves without their data, and how they are nested."""

    def for_run(self) -> CallRegion:
        return CallRegion(self._strategy, self._cuts)

    def call(self, call: DenoiserCall) -> Any:
        """The computed output, or one of the same structure made of forecasts, row by row."""
        key = call.denoiser, call.branch, call.options
        by_row = has_rows(call, self._strategy) and self._cuts.allows(call, call.batch)
        signal = None if self._strategy.chosen_signal == "none" else call.watched(self._strategy)
        choices = call.ask(call.batch if by_row else 1, layout=call.layout, signal=signal)
        if key not in self._forms:  # no result has shown the form that this call asks for
            choices = [replace(each, reuse=False, reason="unprimed") if each.reuse else each for each in choices]
        rows = [place for place, each in enumerate(choices) if not each.reuse]
        if rows:
            latents = _latents_before(call)
            is_whole = len(rows) == len(choices)
            result = call.make() if is_whole else self._cuts.compute(call, rows)
            leaves, form = flattened(result, call.batch)
            self._forms[key] = ([_shape_only(leaf) for leaf in leaves], form)
            if by_row and is_whole and not self._cuts.is_divided(call, result):
                # Decided again for the batch: what has no rows cannot be put together from some.
                choices = call.ask(1, layout=call.layout, signal=signal)
        else:
            leaves, form = self._forms[key]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if rows:
            samples = _samples(call, tensors, latents)
        else:  # forecasts of the raw output need none
            is_raw = call.run.generation.outputs.target == "output"
            samples = [None] * len(tensors) if is_raw else _samples(call, tensors, _unscaled(call))
        is_negated = call.model in _NEGATED
        outputs = [tensor.neg() for tensor in tensors] if rows and is_negated else tensors
        computed = outputs if rows else None
        if len(choices) == 1:
            used = call.run.generation.answer(choices[0], computed, samples)
        else:
            used = call.run.wave.answer(choices, computed, samples)
        if by_row and len(choices) > 1 and not self._cuts.allows(call, call.batch):
            # From now on one decision for all: what was remembered of each is not used any more.
            for each, choice in zip(call.run.wave.generations[1:], choices, strict=False):
                each.forget(choice)
        if used is outputs:
            return result
        made = iter([each.neg_() for each in used] if is_negated else used)
        return unflattened([next(made) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], form)


def _latents_before(call: DenoiserCall) -> list[torch.Tensor]:
    """The latents of a call that will be computed, for `_samples`.

    Copies if they are needed behind the call: the denoiser may use its input as scratch space. Cost: one copy of the
    latents a computed call.
    """
    if call.run.generation.outputs.target == "output":
        return call.latents
    unscaled = _unscaled(call)
    return [latent.clone() for latent in unscaled] if unscaled is call.latents else unscaled


def _unscaled(call: DenoiserCall) -> list[torch.Tensor]:
    """The latents of a call as the scheduler knows them."""
    scale = call.run.generation.level.input_scale
    return call.latents if scale == 1.0 else [latent / scale for latent in call.latents]


def _samples(
    call: DenoiserCall, outputs: Sequence[torch.Tensor], own: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The sample that each output belongs to: the next tensor of its shape among the arguments of the call.

    The call's `own` latents come first, because masks and callbacks may have changed them since the scheduler returned
    them; then the scheduler's latents, for models that also get conditioning channels; then the other arguments, for
    models of several kinds of latents, such as frames and sound.
    """
    previous = [] if call.run.latents is None else [call.run.latents]
    left = [*own, *previous, *(tensor for tensor in call.tensors if tensor is not call.input)]
    samples: list[torch.Tensor | None] = []
    for output in outputs:
        index = next((place for place, each in enumerate(left) if each.shape == output.shape), None)
        samples.append(None if index is None else left.pop(index))
    return samples


def _shape_only(leaf: object) -> Any:
    # Enough to rebuild the structure, without keeping the data alive.
    return torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf
