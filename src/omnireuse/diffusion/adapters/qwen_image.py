"""Qwen-Image: double-stream blocks throughout, and one joint stream from 2.1 on."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = ["QWEN_IMAGE", "QWEN_IMAGE_21"]


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


def _modulated_joint_input(block: Any, arguments: Arguments) -> torch.Tensor:
    scale = arguments["modulation"].chunk(4, dim=-1)[0].unsqueeze(1)
    is_noisy = arguments["target_token_mask"]
    if is_noisy is not None:
        # The last row is of time 0, which text and reference images are modulated by.
        scale = torch.where(is_noisy[None, :, None], scale[:-1], scale[-1:])
    modulated: torch.Tensor = block.img_norm1(arguments["hidden_states"]) * (1 + scale)
    return modulated


QWEN_IMAGE_21 = BlockStack(
    model="QwenImage21Transformer2DModel", lists=("transformer_blocks",), signal=_modulated_joint_input
)
