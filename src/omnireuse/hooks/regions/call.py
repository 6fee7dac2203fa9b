"""Region `call`: one call of the denoiser is skipped, each branch with a history of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from omnireuse.hooks.regions.cuts import Cuts, has_rows
from omnireuse.hooks.regions.rows import flattened, row_of, unflattened
from omnireuse.hooks.run import DenoiserCall, Region
from omnireuse.loop.events import Choice
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
        key = (call.denoiser, call.branch, call.options)
        by_row = has_rows(call, self._strategy) and self._cuts.allows(call, call.batch)
        signal = None if self._strategy.chosen_signal == "none" else call.watched(self._strategy)
        choices = [
            call.decide(row, layout=call.layout, signal=signal) for row in (range(call.batch) if by_row else [None])
        ]
        if key not in self._forms:
            # No result has shown the form that this call asks for.
            choices = [
                replace(choice, reuse=False, reason="unprimed") if choice.reuse else choice for choice in choices
            ]
        computing = [choice for choice in choices if not choice.reuse]
        computed: list[torch.Tensor] = []
        latents: list[torch.Tensor] = []
        is_whole = False
        if computing:
            latents = _latents_before(call)
            if len(computing) < len(choices):
                result, is_whole = self._cuts.compute(call, [c.sample for c in computing if c.sample is not None])
            else:
                result, is_whole = call.compute(), True
            leaves, form = flattened(result, call.batch if is_whole else len(computing))
            self._forms[key] = ([_shape_only(leaf) for leaf in leaves], form)
            computed = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if by_row and len(computing) == len(choices) and not self._cuts.is_divided(call, result):
                # Decided again for the batch: what has no rows cannot be put together from some.
                choices = computing = [call.decide(None, layout=call.layout, signal=signal)]
        leaves, form = self._forms[key]
        shapes = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        parts, is_result = [], len(computing) == len(choices)
        for choice in choices:
            if choice.reuse:
                parts.append(_predict(call, choice, shapes))
            else:
                row = choice.sample if is_whole else computing.index(choice)
                outputs = [row_of(leaf, row) for leaf in computed]
                corrected = _observe(call, choice, outputs, latents)
                parts.append(outputs if corrected is None else corrected)
                is_result = is_result and corrected is None
        if by_row and not self._cuts.allows(call, call.batch):
            # From now on one decision for all: what was remembered of each is not used any more.
            for choice in choices:
                if choice.sample is not None:
                    call.run.generation.forget(choice)
        if is_result:
            return result
        whole = iter(part[0] if len(part) == 1 else torch.cat(part) for part in zip(*parts, strict=True))
        leaves = [next(whole) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return unflattened(leaves, form)


def _predict(call: DenoiserCall, choice: Choice, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    shapes = [leaf.shape if choice.sample is None else torch.Size((1, *leaf.shape[1:])) for leaf in like]
    dtypes = [leaf.dtype for leaf in like]
    generation = call.run.generation
    samples: list[torch.Tensor | None] = [None] * len(shapes)
    if generation.outputs.target != "output":
        samples = _samples(call, choice, shapes, _unscaled(call))
    outputs = generation.predict_outputs(choice, samples, dtypes)
    return [output.neg_() for output in outputs] if _is_negated(call) else outputs


def _observe(
    call: DenoiserCall, choice: Choice, outputs: Sequence[torch.Tensor], latents: Sequence[torch.Tensor]
) -> list[torch.Tensor] | None:
    is_negated = _is_negated(call)
    if is_negated:
        outputs = [output.neg() for output in outputs]
    samples = _samples(call, choice, [output.shape for output in outputs], latents)
    corrected = call.run.generation.observe_outputs(choice, outputs, samples)
    return [output.neg_() for output in corrected] if corrected is not None and is_negated else corrected


def _is_negated(call: DenoiserCall) -> bool:
    return call.model in _NEGATED


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
    call: DenoiserCall, choice: Choice, shapes: Sequence[torch.Size], own: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The sample that each output belongs to: the next tensor of its shape among the arguments of the call.

    The call's `own` latents come first, because masks and callbacks may have changed them since the scheduler returned
    them; then the scheduler's latents, for models that also get conditioning channels; then the other arguments, for
    models of several kinds of latents, such as frames and sound.
    """
    row = choice.sample
    previous = [] if call.run.latents is None else [call.run.latents]
    others = [tensor for tensor in call.tensors if tensor is not call.input]
    left = [row_of(each, row) for each in (*own, *previous, *others) if row is None or each.shape[:1] == (call.batch,)]
    samples: list[torch.Tensor | None] = []
    for shape in shapes:
        index = next((i for i, each in enumerate(left) if each.shape == shape), None)
        samples.append(None if index is None else left.pop(index))
    return samples


def _shape_only(leaf: Any) -> Any:
    # Enough to rebuild the structure, without keeping the data alive.
    return torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf
