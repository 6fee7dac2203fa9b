"""Models outside diffusers, served through a function that takes their forward apart.

An extractor returns a `CacheContext`: the pieces of one forward that a block-level cache needs. Models of diffusers
need none, they are served by declaration (`omnireuse.diffusion.adapters`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from omnireuse.diffusion.reuse.runtime.regions.base import DenoiserCall, Emit, measures
from omnireuse.diffusion.reuse.runtime.run import Run
from omnireuse.diffusion.reuse.runtime.track import layout_of
from omnireuse.diffusion.reuse.runtime.verdict import Verdict, magnitudes
from omnireuse.diffusion.reuse.runtime.wrappers import unwrapped
from omnireuse.diffusion.reuse.strategy import Strategy
from omnireuse.errors import ConfigError, StateError, UnknownNameError, WrongTypeError

__all__ = ["CacheContext", "ExtractedRegion", "Extractor", "get_extractor", "register_extractor"]


@dataclass(kw_only=True)
class CacheContext:
    """One forward, taken apart.

    Attributes:
        modulated_input: the tensor compared between steps.
        hidden_states: the stream before the blocks, batch first.
        encoder_hidden_states: the second stream before the blocks, or None.
        temb: the time embedding.
        run_transformer_blocks: runs the blocks; returns (hidden,) or (hidden, encoder).
        postprocess: the model's output layers: hidden → model output.
        extra_states: whatever else the extractor carries along.
    """

    modulated_input: torch.Tensor
    hidden_states: torch.Tensor
    encoder_hidden_states: torch.Tensor | None
    temb: torch.Tensor
    run_transformer_blocks: Callable[[], tuple[torch.Tensor, ...]]
    postprocess: Callable[[torch.Tensor], Any]
    extra_states: dict[str, Any] | None = None

    def validate(self, *, run_blocks: bool = False) -> None:
        """Check the pieces against each other.

        Args:
            run_blocks: also run the blocks and the output layers once, which costs a forward.

        Raises:
            WrongTypeError: a field of the wrong type.
            ConfigError: tensors that disagree in batch size or device, are empty, 0-dimensional or not finite.
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
            if value.shape[0] != self.hidden_states.shape[0]:
                raise ConfigError(
                    f"CacheContext.{name} must have the batch size of hidden_states, {self.hidden_states.shape[0]}, "
                    f"got {value.shape[0]}"
                )
        for name, value in tensors.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise ConfigError(f"CacheContext.{name} must be finite")
        if run_blocks:
            self._invoke()

    def _invoke(self) -> None:
        expected = 1 if self.encoder_hidden_states is None else 2
        try:
            streams = self.run_transformer_blocks()
            self.postprocess(streams[0])
        except Exception as error:
            raise StateError(f"CacheContext: its callables failed when tried out: {error}") from error
        if not isinstance(streams, tuple) or len(streams) != expected:
            raise StateError(f"CacheContext.run_transformer_blocks must return a tuple of {expected} tensors")
        if streams[0].shape != self.hidden_states.shape:
            raise StateError(
                "CacheContext.run_transformer_blocks must keep the shape of hidden_states, "
                f"{tuple(self.hidden_states.shape)}, got {tuple(streams[0].shape)}"
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

    def __init__(self, strategy: Strategy, emit: Emit, denoisers: Sequence[torch.nn.Module]) -> None:
        self._strategy = strategy
        self._emit = emit
        self._extractors = [get_extractor(type(unwrapped(denoiser)).__name__) for denoiser in denoisers]
        self._unseen = set(range(len(denoisers)))

    def call(self, call: DenoiserCall) -> Any:
        """The output, with the blocks run or their stored residual added to the streams before them."""
        started = perf_counter()
        context = self._extractors[call.denoiser](unwrapped(call.module), *call.args, **call.kwargs)
        if call.denoiser in self._unseen:
            context.validate()
            self._unseen.discard(call.denoiser)
        streams = [context.hidden_states]
        if context.encoder_hidden_states is not None:
            streams.append(context.encoder_hidden_states)
        watch = context.modulated_input if self._strategy.chosen_signal == "modulated_input" else None
        key = (call.denoiser, call.branch)
        verdict = Verdict(call.run, key, call.branch, call.order, watch, layout_of(*call.tensors, *streams))
        residual = self._strategy.chosen_quantity == "residual"
        if verdict.reuse:
            values = verdict.foretell()
            hidden = streams[0] + values[0] if residual else values[0].clone()
        else:
            entries = [stream.clone() for stream in streams]
            started = perf_counter()
            results = context.run_transformer_blocks()
            verdict.host_seconds -= perf_counter() - started
            pairs = list(zip(results, entries, strict=True))
            values = [after - before if residual else after.clone() for after, before in pairs]
            verdict.learn(values, lambda: magnitudes(values), measures(self._strategy, values[0]))
            hidden = results[0]
        verdict.host_seconds += perf_counter() - started
        self._emit(verdict.conclude())
        return context.postprocess(hidden)

    def scheduler_step(self, run: Run, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """The output as it is: this region has done its work in the call."""
        return output

    def undo(self) -> None:
        """Nothing stands between objects."""
