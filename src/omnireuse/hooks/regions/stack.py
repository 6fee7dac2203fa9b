"""The description of a model's block stack, and the way of streams into a block and out of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch

__all__ = ["Arguments", "Block", "Stack"]

Arguments = Mapping[str, Any]
"""Arguments of a block's call, by the names of its parameters."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of a stack.

    Attributes:
        module: the block.
        streams: names of the parameters that it returns updated, in the order of its return value.
        is_joined: whether its one stream is the stack's streams, concatenated along the tokens.
        bypass: the result in place of running it, where that is not its streams as they came in.
    """

    module: torch.nn.Module
    streams: tuple[str, ...]
    is_joined: bool = False
    bypass: Callable[[Arguments], Any] | None = None

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters of its forward."""
        return tuple(inspect.signature(type(self.module).forward).parameters)[1:]

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The call's arguments, by name."""
        return {**dict(zip(self.parameters, args, strict=False)), **kwargs}

    def entering(self, arguments: Arguments) -> list[torch.Tensor]:
        """Its streams as they come in: this rank's tokens, where diffusers' context parallelism splits them here."""
        registry = getattr(self.module, "_diffusers_hook", None)
        for hook in () if registry is None else registry.hooks.values():
            if type(hook).__name__ == "ContextParallelSplitHook":
                _, arguments = hook.pre_forward(self.module, **arguments)
        return [arguments[name] for name in self.streams]

    def passed_on(self, arguments: Arguments) -> Any:
        """The return value of a block that the streams pass by."""
        if self.bypass is not None:
            return self.bypass(arguments)
        return self._as_returned(self.entering(arguments))

    def leaving(self, result: Any, entry: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The stack's streams in its return value, in the order of `entry`, which says how many tokens each has.

        None for a stream that it no longer returns, such as the text after the last block of SD3.
        """
        if self.is_joined:
            return list(result.split([stream.shape[1] for stream in entry], dim=1))
        return [result] if isinstance(result, torch.Tensor) else list(result)

    def returned(self, streams: Sequence[torch.Tensor]) -> Any:
        """The stack's streams as this block would return them."""
        return torch.cat(list(streams), dim=1) if self.is_joined else self._as_returned(streams)

    @staticmethod
    def _as_returned(streams: Sequence[torch.Tensor]) -> Any:
        return streams[0] if len(streams) == 1 else tuple(streams)


class Stack(Protocol):
    """A model's block stack."""

    @property
    def signal(self) -> Callable[[torch.nn.Module, Arguments], torch.Tensor]:
        """Reads the watched tensor from block 0 and its arguments."""

    @property
    def main_stream(self) -> int:
        """Index of the stream that becomes the output."""

    @property
    def has_long_skips(self) -> bool:
        """True if the k-th block from the end reads the output of the k-th from the beginning."""

    def blocks_of(self, denoiser: torch.nn.Module) -> list[Block]:
        """All blocks in the order of the forward. The streams of the first are the streams of the stack."""
