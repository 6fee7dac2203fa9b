"""What must be said of a model for its block stack to be skipped: where the blocks are, and how to read block 0."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from omnireuse.errors import UnsupportedModelError

__all__ = ["BlockStack"]

Arguments = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BlockStack:
    """The declaration of one model family.

    Attributes:
        model: class name of the denoiser.
        lists: names of its block lists, in the order in which the forward runs them.
        streams: names of the blocks' parameters that they return updated, in the order of the return value.
        signal: reads the modulated input of the first block from that block and its arguments by name.
        signal_name: how published coefficient tables name this signal.
    """

    model: str
    lists: tuple[str, ...]
    streams: tuple[str, ...]
    signal: Callable[[torch.nn.Module, Arguments], torch.Tensor]
    signal_name: str

    def blocks_of(self, denoiser: torch.nn.Module) -> list[torch.nn.Module]:
        """All blocks in the order of the forward.

        Raises:
            UnsupportedModelError: a model without one of the lists, without blocks, or whose blocks lack a stream.
        """
        blocks: list[torch.nn.Module] = []
        for name in self.lists:
            found = getattr(denoiser, name, None)
            if found is None:
                raise UnsupportedModelError(
                    f"{type(denoiser).__name__} has no block list {name!r}, as declared for {self.model}"
                )
            blocks.extend(found)
        if not blocks:
            raise UnsupportedModelError(f"{type(denoiser).__name__} has no blocks; region 'blocks' has nothing to skip")
        for block in blocks:
            missing = [
                stream for stream in self.streams if stream not in inspect.signature(type(block).forward).parameters
            ]
            if missing:
                raise UnsupportedModelError(
                    f"{type(block).__name__}.forward has no parameter {missing[0]!r}, as declared for {self.model}; "
                    f"this version of the model is not supported in region 'blocks', use region 'call'"
                )
        return blocks
