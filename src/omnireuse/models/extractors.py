"""Region `blocks` for models outside diffusers, through a function that takes their forward apart.

An extractor returns a `CacheContext`: the parts of one forward that a block-level cache needs. Models of diffusers need
none, because their blocks are declared (`omnireuse.models`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.base.validation import kind_error, look_up
from omnireuse.errors import ConfigError, OmniReuseError, StateError, WrongTypeError
from omnireuse.hooks.denoisers import model_name
from omnireuse.hooks.regions.stack import StackPass
from omnireuse.hooks.run import DenoiserCall, Region
from omnireuse.loop.strategy import Strategy

__all__ = ["CacheContext", "ExtractedRegion", "Extractor", "get_extractor", "has_extractor", "register_extractor"]


@dataclass
class CacheContext:
    """The parts of one forward.

    Attributes:
        modulated_input: the tensor compared between steps.
        hidden_states: the stream before the blocks, batch first.
        encoder_hidden_states: the second stream before the blocks, or None.
        temb: the time embedding; its batch size may differ, since some models double it.
        run_transformer_blocks: runs the blocks; returns hidden, (hidden,) or (hidden, encoder).
        postprocess: the model's output layers: hidden → model output.
        extra_states: further values of the extractor's own.
    """

    modulated_input: torch.Tensor
    hidden_states: torch.Tensor
    encoder_hidden_states: torch.Tensor | None
    temb: torch.Tensor
    run_transformer_blocks: Callable[[], torch.Tensor | tuple[torch.Tensor | None, ...]]
    postprocess: Callable[[torch.Tensor], Any]
    extra_states: dict[str, Any] | None = None

    def validate(self, *, run_blocks: bool = False) -> None:
        """Check the parts against each other.

        Args:
            run_blocks: also run the blocks and the output layers once, which costs a forward.

        Raises:
            WrongTypeError: a field is of the wrong type.
            ConfigError: tensors disagree in batch size (`temb` aside) or device, or one is empty, 0-dimensional or not
                finite.
            StateError: with `run_blocks`: a callable fails, or returns something else than declared.
        """
        tensors: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("modulated_input", "hidden_states", "encoder_hidden_states", "temb")
            if name != "encoder_hidden_states" or self.encoder_hidden_states is not None
        }
        for name, value in tensors.items():
            _check(isinstance(value, torch.Tensor), name, "be a tensor", type(value).__name__, WrongTypeError)
        for name in ("run_transformer_blocks", "postprocess"):
            value = getattr(self, name)
            _check(callable(value), name, "be callable", type(value).__name__, WrongTypeError)
        extra = self.extra_states
        _check(isinstance(extra, dict | None), "extra_states", "be a dict", type(extra).__name__, WrongTypeError)
        device, batch = self.hidden_states.device, self.hidden_states.shape[:1]
        for name, value in tensors.items():
            shape = tuple(value.shape)
            _check(value.ndim > 0 and value.numel() > 0, name, "have elements and a batch dimension", shape)
            _check(value.device == device, name, f"be on the device of hidden_states, {device}", value.device)
            has_batch = name == "temb" or value.shape[:1] == batch
            _check(has_batch, name, f"have the batch size of hidden_states, {batch[0]}", shape)
        for name, value in tensors.items():
            is_finite = not value.is_floating_point() or bool(torch.isfinite(value).all())
            _check(is_finite, name, "be finite", "NaN or infinity")
        if run_blocks:
            self._try_callables()

    def computed_streams(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the blocks: the hidden states and the encoder states after them, or None if they return none.

        Raises:
            StateError: they return anything but hidden, (hidden,) or (hidden, encoder).
        """
        given = self.run_transformer_blocks()
        streams: tuple[Any, ...] = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        kinds = f"({', '.join(type(each).__name__ for each in streams)})"
        hidden, encoder = (*streams, None, None)[:2]
        are_streams = (
            isinstance(hidden, torch.Tensor) and isinstance(encoder, torch.Tensor | None) and len(streams) <= 2
        )
        _check(are_streams, _BLOCKS, "return tensors: hidden states, then encoder states or none", kinds, StateError)
        is_asked = encoder is None or self.encoder_hidden_states is not None
        _check(is_asked, _BLOCKS, "return encoder states only if encoder_hidden_states is set", kinds, StateError)
        return hidden, encoder

    def _try_callables(self) -> None:
        try:
            hidden, _ = self.computed_streams()
            self.postprocess(hidden)
        except StateError:
            raise
        except Exception as error:
            raise StateError(f"CacheContext: a callable failed its test: {error}") from error
        must = f"keep the shape of hidden_states, {tuple(self.hidden_states.shape)}"
        _check(hidden.shape == self.hidden_states.shape, _BLOCKS, must, tuple(hidden.shape), StateError)


_BLOCKS = "run_transformer_blocks"


def _check(holds: bool, name: str, must: str, got: object, error: type[OmniReuseError] = ConfigError) -> None:
    if not holds:
        raise error(f"CacheContext.{name} must {must}, got {got}")


Extractor = Callable[..., CacheContext]
"""`extractor(module, *args, **kwargs)`, with the arguments of the module's own call."""

_EXTRACTORS: dict[str, Extractor] = {}


def register_extractor(transformer_type: str, fn: Extractor) -> None:
    """Serve models of this class name through `fn`; a later registration replaces an earlier one.

    Raises:
        WrongTypeError: the name is no text, or the function is not callable.
    """
    if not isinstance(transformer_type, str) or not transformer_type:
        raise kind_error("register_extractor", "transformer_type", "be a class name", transformer_type)
    if not callable(fn):
        raise kind_error("register_extractor", "fn", "be callable", fn)
    _EXTRACTORS[transformer_type] = fn


def get_extractor(transformer_type: str) -> Extractor:
    """The extractor registered for a class name.

    Raises:
        UnknownNameError: there is none; the error names the known ones.
    """
    return look_up("transformer type", transformer_type, _EXTRACTORS, hint="register_extractor(name, fn) adds one")


def has_extractor(transformer_type: str) -> bool:
    """True if an extractor was registered for a class name."""
    return transformer_type in _EXTRACTORS


class ExtractedRegion(Region):
    """Region `blocks` on denoisers with extractors. The first context of each denoiser is validated."""

    def __init__(self, strategy: Strategy, denoisers: Sequence[torch.nn.Module]) -> None:
        self._strategy = strategy
        self._extractors = [get_extractor(model_name(denoiser)) for denoiser in denoisers]
        self._unseen = set(range(len(denoisers)))

    def call(self, call: DenoiserCall) -> Any:
        """The output, with the blocks run or their stored residual added to the streams before them."""
        context = self._extractors[call.denoiser](call.module, *call.args, **call.kwargs)
        if call.denoiser in self._unseen:
            context.validate()
            self._unseen.discard(call.denoiser)
        streams = [each for each in (context.hidden_states, context.encoder_hidden_states) if each is not None]
        current = StackPass(call, self._strategy, context.modulated_input)
        current.enter(streams)
        after = current.leave(None if current.reuse else context.computed_streams()[: len(streams)])
        return context.postprocess(after[0])
