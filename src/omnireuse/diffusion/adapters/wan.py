"""Wan: one stream of video tokens; text enters by cross-attention and stays as it is."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = ["WAN"]


def _projected_time_embedding(block: Any, arguments: Arguments) -> torch.Tensor:
    embedding: torch.Tensor = arguments["temb"]
    return embedding


WAN = BlockStack(
    model="WanTransformer3DModel",
    lists=("blocks",),
    streams=("hidden_states",),
    signal=_projected_time_embedding,
    signal_name="projected time embedding e0",
)
