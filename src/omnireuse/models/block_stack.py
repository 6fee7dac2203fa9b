"""The declaration of one model's block stack: where its blocks are, and how to read the signal of the first block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch

from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.regions.stack import Arguments, Block

__all__ = ["IMAGE_FIRST", "TEXT_FIRST", "Arguments", "BlockStack", "modulated", "norm_output", "single_table"]

TEXT_FIRST = ("encoder_hidden_states", "hidden_states")
IMAGE_FIRST = ("hidden_states", "encoder_hidden_states")
Signal = Callable[[Any, Arguments], torch.Tensor]


@dataclass(frozen=True)
class BlockStack:
    """The block stack of one model.

    Attributes:
        model: class name of the denoiser.
        lists: names of its block lists, in the order in which the forward runs them.
        streams: the parameters of a block that it returns updated, in the order of its return value.
        signal: reads the modulated input of the first block from that block and its arguments by name.
        signal_name: the name of this signal in published coefficient tables.
        joined: those of `lists` whose blocks take all streams as one `hidden_states`, concatenated along the tokens in
            the order of `streams`.
        bypass: for lists whose blocks do not return their streams: the result of a block that does not run.
        has_long_skips: whether the k-th block from the end reads what the k-th from the beginning returned.
        refuses: returns the reason why this very denoiser cannot be served, or None.
    """

    model: str
    _: KW_ONLY
    lists: tuple[str, ...] = ("transformer_blocks",)
    streams: tuple[str, ...] = ("hidden_states",)
    signal: Signal
    signal_name: str = "modulated_input"
    joined: tuple[str, ...] = ()
    bypass: Mapping[str, Callable[[Arguments], Any]] = field(default_factory=dict)
    has_long_skips: bool = False
    refuses: Callable[[Any], str | None] = lambda _denoiser: None

    @property
    def main_stream(self) -> int:
        """Index of the stream that becomes the output."""
        return next(index for index, name in enumerate(self.streams) if not name.startswith("encoder"))

    def blocks_of(self, denoiser: torch.nn.Module) -> list[Block]:
        """All blocks in the order of the forward.

        Raises:
            UnsupportedModelError: a list is missing, there are no blocks, a block lacks a stream, or the denoiser is
                refused.
        """
        name = type(denoiser).__name__
        reason = self.refuses(denoiser)
        if reason is not None:
            raise UnsupportedModelError(f"{name}: {reason}; use region 'call' or 'step'")
        blocks = [block for each in self.lists for block in self._blocks_in(denoiser, each)]
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

    def _blocks_in(self, denoiser: torch.nn.Module, name: str) -> list[Block]:
        modules = getattr(denoiser, name, None)
        if modules is None:
            raise UnsupportedModelError(
                f"{type(denoiser).__name__} has no block list {name!r}, as declared for {self.model}"
            )
        is_joined = name in self.joined
        streams = ("hidden_states",) if is_joined else self.streams
        bypass = self.bypass.get(name)
        return [Block(module=module, streams=streams, is_joined=is_joined, bypass=bypass) for module in modules]


def norm_output(*arguments: str, norm: str = "norm1", **keywords: str) -> Signal:
    """A signal: the first thing that the block's first normalisation returns.

    Args:
        arguments: names of the block's arguments that it is called with, by position.
        norm: name of the normalisation.
        keywords: the same by keyword.
    """

    def read(block: Any, given: Arguments) -> torch.Tensor:
        positional = [given[name] for name in arguments]
        result = getattr(block, norm)(*positional, **{key: given[name] for key, name in keywords.items()})
        tokens: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]
        return tokens

    return read


def single_table(embedding: str) -> Signal:
    """A signal: one projection for all blocks and a table for each with shift and scale first (adaLN-single).

    Args:
        embedding: the argument with the projected time embedding, (batch, [tokens,] rows · channels).
    """

    def read(block: Any, given: Arguments) -> torch.Tensor:
        tokens, table = given["hidden_states"], block.scale_shift_table
        projected = given[embedding].reshape(len(tokens), -1, *table.shape)
        shift, scale = (table + projected)[:, :, :2].unbind(dim=2)
        return modulated(block.norm1(tokens), scale, shift)

    return read


def modulated(tokens: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
    """Normalised tokens, scaled and shifted as adaptive layer norms do."""
    scaled = tokens * (1 + scale)
    return scaled if shift is None else scaled + shift
