"""What must be said of a model for its block stack to be skipped: where the blocks are, and how to read block 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from omnireuse.diffusion.reuse.runtime.regions.stack import Arguments, Block
from omnireuse.errors import UnsupportedModelError

__all__ = ["Arguments", "BlockStack"]


@dataclass(frozen=True, kw_only=True)
class BlockStack:
    """The declaration of one model family.

    Attributes:
        model: class name of the denoiser.
        lists: names of its block lists, in the order in which the forward runs them.
        streams: names of the blocks' parameters that they return updated, in the order of the return value.
        signal: reads the modulated input of the first block from that block and its arguments by name.
        signal_name: how published coefficient tables name this signal.
        joined: those of `lists` whose blocks carry all streams as one `hidden_states`, concatenated along the tokens
            in the order of `streams`.
        bypass: for lists whose blocks do not return their streams, what a block returns instead of running.
        has_long_skips: whether the k-th block from the end reads what the k-th from the beginning put out.
        refuses: says why this very denoiser cannot be served; None where it can.
    """

    model: str
    lists: tuple[str, ...]
    streams: tuple[str, ...] = ("hidden_states",)
    signal: Callable[[Any, Arguments], torch.Tensor]
    signal_name: str = "modulated_input"
    joined: tuple[str, ...] = ()
    bypass: Mapping[str, Callable[[Arguments], Any]] = field(default_factory=dict)
    has_long_skips: bool = False
    refuses: Callable[[Any], str | None] = lambda _denoiser: None

    @property
    def main_stream(self) -> int:
        """Index of the stream that becomes the output, which the others only inform."""
        return next(index for index, name in enumerate(self.streams) if not name.startswith("encoder"))

    @property
    def makes_one_output(self) -> bool:
        """Whether the denoiser makes one kind of latents: the scheduler of its pipeline is handed no more."""
        return sum(not name.startswith("encoder") for name in self.streams) == 1

    def blocks_of(self, denoiser: torch.nn.Module) -> list[Block]:
        """All blocks in the order of the forward.

        Raises:
            UnsupportedModelError: a model without one of the lists, without blocks, whose blocks lack a stream, or
                that is refused.
        """
        name = type(denoiser).__name__
        reason = self.refuses(denoiser)
        if reason is not None:
            raise UnsupportedModelError(f"{name}: {reason}; use region 'call' or 'step'")
        blocks = [block for each in self.lists for block in self._listed(denoiser, each)]
        if not blocks:
            raise UnsupportedModelError(f"{name} has no blocks; region 'blocks' has nothing to skip")
        for block in blocks:
            missing = [stream for stream in block.streams if stream not in block.parameters]
            if missing:
                raise UnsupportedModelError(
                    f"{type(block.module).__name__}.forward has no parameter {missing[0]!r}, as declared for "
                    f"{self.model}; this version of the model is not supported in region 'blocks', use region 'call'"
                )
        return blocks

    def _listed(self, denoiser: torch.nn.Module, name: str) -> list[Block]:
        modules = getattr(denoiser, name, None)
        if modules is None:
            raise UnsupportedModelError(
                f"{type(denoiser).__name__} has no block list {name!r}, as declared for {self.model}"
            )
        is_joined = name in self.joined
        streams = ("hidden_states",) if is_joined else self.streams
        bypass = self.bypass.get(name)
        return [Block(module=module, streams=streams, is_joined=is_joined, bypass=bypass) for module in modules]
