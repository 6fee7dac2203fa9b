"""Models outside diffusers, served through a function that takes their forward apart.

An extractor returns a `CacheContext`: the pieces of one forward that a block-level cache needs. Models of diffusers
need none, they are served by declaration (`omnireuse.diffusion.adapters`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.diffusion.reuse.branch_state import layout_of
from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import ConfigError, StateError, UnknownNameError, WrongTypeError

__all__ = ["CacheContext", "ExtractedRegion", "Extractor", "get_extractor", "has_extractor", "register_extractor"]


@dataclass
class CacheContext:
    """One forward, taken apart.

    Attributes:
        modulated_input: the tensor compared between steps.
        hidden_states: the stream before the blocks, batch first.
        encoder_hidden_states: the second stream before the blocks, or None.
        temb: the time embedding; its batch size may differ, since some models double it.
        run_transformer_blocks: runs the blocks; returns hidden, (hidden,) or (hidden, encoder).
        postprocess: the model's output layers: hidden → model output.
        extra_states: whatever else the extractor carries along.
    """

    modulated_input: torch.Tensor
    hidden_states: torch.Tensor
    encoder_hidden_states: torch.Tensor | None
    temb: torch.Tensor
    run_transformer_blocks: Callable[[], torch.Tensor | tuple[torch.Tensor | None, ...]]
    postprocess: Callable[[torch.Tensor], Any]
    extra_states: dict[str, Any] | None = None

    def validate(self, *, run_blocks: bool = False) -> None:
        """Check the pieces against each other.

        Args:
            run_blocks: also run the blocks and the output layers once, which costs a forward.

        Raises:
            WrongTypeError: a field of the wrong type.
            ConfigError: tensors that disagree in batch size (`temb` aside) or device, are empty, 0-dimensional or not
                finite.
            StateError: with `run_blocks`, blocks or output layers that fail or return something else than declared.
        """
        tensors = {"modulated_input": self.modulated_input, "hidden_states": self.hidden_states, "temb": self.temb}
        if self.encoder_hidden_states is not None:
            tensors["encoder_hidden_states"] = self.encoder_hidden_states
        for name, value in tensors.items():
            if not isinstance(value, torch.Tensor):
                raise WrongTypeError(f"CacheContext.{name} must be a tensor, got {type(value).__name__}")
        for name in ("run_transformer_blocks", "postprocess"):
            if not callable(getattr(self, name)):
                raise WrongTypeError(f"CacheContext.{name} must be callable, got {type(getattr(self, name)).__name__}")
        if self.extra_states is not None and not isinstance(self.extra_states, dict):
            raise WrongTypeError(f"CacheContext.extra_states must be a dict, got {type(self.extra_states).__name__}")
        for name, value in tensors.items():
            if value.ndim == 0 or value.numel() == 0:
                raise ConfigError(
                    f"CacheContext.{name} must have elements and a batch dimension, got {tuple(value.shape)}"
                )
            if value.device != self.hidden_states.device:
                raise ConfigError(
                    f"CacheContext.{name} must be on the device of hidden_states, {self.hidden_states.device}, "
                    f"got {value.device}"
                )
            if name != "temb" and value.shape[0] != self.hidden_states.shape[0]:
                raise ConfigError(
                    f"CacheContext.{name} must have the batch size of hidden_states, {self.hidden_states.shape[0]}, "
                    f"got {value.shape[0]}"
                )
        for name, value in tensors.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise ConfigError(f"CacheContext.{name} must be finite")
        if run_blocks:
            self._try_out()

    def computed_streams(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the blocks: hidden states and encoder states behind them, the latter None where they return none.

        Raises:
            StateError: they return anything but hidden, (hidden,) or (hidden, encoder).
        """
        given = self.run_transformer_blocks()
        streams = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        hidden, encoder = (*streams, None)[:2] if 1 <= len(streams) <= 2 else (None, None)
        if not isinstance(hidden, torch.Tensor) or not isinstance(encoder, (torch.Tensor, type(None))):
            shown = f"({', '.join(type(each).__name__ for each in streams)})"
            raise StateError(
                "CacheContext.run_transformer_blocks must return hidden states, alone or followed by encoder states, "
                f"as tensors; got {shown}"
            )
        if encoder is not None and self.encoder_hidden_states is None:
            raise StateError(
                "CacheContext.run_transformer_blocks returned encoder states, but encoder_hidden_states is None; set "
                "it to the encoder states before the blocks, or return the hidden states alone"
            )
        return hidden, encoder

    def _try_out(self) -> None:
        try:
            hidden, _ = self.computed_streams()
            self.postprocess(hidden)
        except StateError:
            raise
        except Exception as error:
            raise StateError(f"CacheContext: its callables failed when tried out: {error}") from error
        if hidden.shape != self.hidden_states.shape:
            raise StateError(
                "CacheContext.run_transformer_blocks must keep the shape of hidden_states, "
                f"{tuple(self.hidden_states.shape)}, got {tuple(hidden.shape)}"
            )


Extractor = Callable[..., CacheContext]
"""`extractor(module, *args, **kwargs)` of the module's own call, which may have come through a wrapper of it."""

_EXTRACTORS: dict[str, Extractor] = {}


def register_extractor(transformer_type: str, fn: Extractor) -> None:
    """Serve models of this class name through `fn`; a later registration replaces an earlier one.

    Raises:
        WrongTypeError: a name that is no text, or a function that cannot be called.
    """
    if not isinstance(transformer_type, str) or not transformer_type:
        raise WrongTypeError(f"register_extractor: transformer_type must be a class name, got {transformer_type!r}")
    if not callable(fn):
        raise WrongTypeError(f"register_extractor({transformer_type!r}): fn must be callable, got {type(fn).__name__}")
    _EXTRACTORS[transformer_type] = fn


def get_extractor(transformer_type: str) -> Extractor:
    """The extractor registered for a class name; the error names the known ones."""
    if transformer_type not in _EXTRACTORS:
        raise UnknownNameError(
            "transformer type", transformer_type, _EXTRACTORS, hint="register_extractor(name, fn) adds one"
        )
    return _EXTRACTORS[transformer_type]


def has_extractor(transformer_type: str) -> bool:
    """Whether an extractor was registered for a class name."""
    return transformer_type in _EXTRACTORS


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
