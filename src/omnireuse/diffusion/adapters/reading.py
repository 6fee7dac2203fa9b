"""The ways in which models modulate the input of their first block: what TeaCache watches, read from block 0's call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from omnireuse.diffusion.adapters.spec import Arguments

__all__ = ["adaptive_norm", "normed", "single_table", "time_embedding"]

Reader = Callable[[Any, Arguments], torch.Tensor]


def adaptive_norm(block: Any, arguments: Arguments) -> torch.Tensor:
    """What `norm1` makes of the tokens and the time embedding; it returns gates and further scales beside it."""
    modulated: torch.Tensor = block.norm1(arguments["hidden_states"], emb=arguments["temb"])[0]
    return modulated


def single_table(embedding: str) -> Reader:
    """One projection for all blocks and a table a block, whose first rows are shift and scale (PixArt's adaLN-single).

    Args:
        embedding: name of the parameter with the projected time embedding, (batch, [tokens,] rows · channels).
    """

    def read(block: Any, arguments: Arguments) -> torch.Tensor:
        tokens: torch.Tensor = arguments["hidden_states"]
        table: torch.Tensor = block.scale_shift_table
        projected = arguments[embedding].reshape(len(tokens), -1, *table.shape)
        shift, scale = (table + projected)[:, :, :2].unbind(dim=2)
        modulated: torch.Tensor = block.norm1(tokens) * (1 + scale) + shift
        return modulated

    return read


def normed(norm: str) -> Reader:
    """The normalised tokens, in blocks without modulation.

    Args:
        norm: name of the block's first normalisation.
    """

    def read(block: Any, arguments: Arguments) -> torch.Tensor:
        tokens: torch.Tensor = getattr(block, norm)(arguments["hidden_states"])
        return tokens

    return read


def time_embedding(block: Any, arguments: Arguments) -> torch.Tensor:
    """The time embedding alone, as the block gets it."""
    embedding: torch.Tensor = arguments["temb"]
    return embedding
