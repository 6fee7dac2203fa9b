"""Region `blocks` on models that extractors take apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from omnireuse.diffusion.cache.teacache.extractors import get_extractor
from omnireuse.diffusion.reuse.branch_state import layout_of
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.diffusion.reuse.strategy import Strategy

__all__ = ["ExtractedRegion"]


class ExtractedRegion:
    """Region `blocks` on models that extractors take apart. The first context of each denoiser is validated."""

    def __init__(self, strategy: Strategy, denoisers: Sequence[torch.nn.Module]) -> None:
        self._strategy = strategy
        self._residual = strategy.chosen_quantity == "residual"
        self._extractors = [get_extractor(type(unwrapped(denoiser)).__name__) for denoiser in denoisers]
        self._unseen = set(range(len(denoisers)))

    def call(self, call: DenoiserCall) -> Any:
        """The output, with the blocks run or their stored residual added to the streams before them."""
        context = self._extractors[call.denoiser](unwrapped(call.module), *call.args, **call.kwargs)
        if call.denoiser in self._unseen:
            context.validate()
            self._unseen.discard(call.denoiser)
        streams = [context.hidden_states]
        if context.encoder_hidden_states is not None:
            streams.append(context.encoder_hidden_states)
        generation = call.run.generation
        choice = generation.decide(
            call.branch,
            denoiser=call.denoiser,
            order=call.order,
            layout=layout_of(*call.tensors, *streams),
            signal=context.modulated_input,
        )
        if choice.reuse:
            values = generation.predict_values(choice)
            hidden = streams[0] + values[0] if self._residual else values[0].clone()
        else:
            entries = [stream.clone() for stream in streams]
            results = context.computed_streams()
            values = [self._value(after, before) for after, before in zip(results, entries, strict=False)]
            generation.observe_values(choice, values)
            hidden = results[0]
        return context.postprocess(hidden)

    def _value(self, after: torch.Tensor | None, before: torch.Tensor) -> torch.Tensor:
        if after is None:
            return before.new_zeros(1)  # the blocks do not return this stream
        return after - before if self._residual else after.clone()

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The output as it is: this region has done its work in the call."""
        return output

    def undo(self) -> None:
        """Nothing stands between objects."""
