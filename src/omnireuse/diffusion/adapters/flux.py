"""Flux: double-stream blocks, then single-stream blocks; both carry text and image tokens."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = ["FLUX"]


def _modulated_input(block: Any, arguments: Arguments) -> torch.Tensor:
    modulated: torch.Tensor = block.norm1(arguments["hidden_states"], emb=arguments["temb"])[0]
    return modulated


FLUX = BlockStack(
    model="FluxTransformer2DModel",
    lists=("transformer_blocks", "single_transformer_blocks"),
    streams=("encoder_hidden_states", "hidden_states"),
    signal=_modulated_input,
    signal_name="modulated_input",
)
