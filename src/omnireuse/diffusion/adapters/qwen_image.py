"""Qwen-Image: double-stream blocks throughout."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = ["QWEN_IMAGE"]


def _modulated_input(block: Any, arguments: Arguments) -> torch.Tensor:
    shift, scale, _gate = block.img_mod(arguments["temb"]).chunk(2, dim=-1)[0].chunk(3, dim=-1)
    normed = block.img_norm1(arguments["hidden_states"])
    # With a second conditioning time the modulation has one row for each; the signal follows the first.
    shift, scale = shift[: len(normed)].unsqueeze(1), scale[: len(normed)].unsqueeze(1)
    return torch.addcmul(normed + shift, normed, scale)


QWEN_IMAGE = BlockStack(
    model="QwenImageTransformer2DModel",
    lists=("transformer_blocks",),
    streams=("encoder_hidden_states", "hidden_states"),
    signal=_modulated_input,
)
