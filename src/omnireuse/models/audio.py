"""Audio models."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.models.block_stack import Arguments, BlockStack, modulated, norm_output

__all__ = ["STACKS"]


def _stable_audio_3(block: Any, given: Arguments) -> torch.Tensor:
    scale, shift = (block.to_scale_shift_gate + given["global_modulation"])[:, None].chunk(6, dim=-1)[:2]
    return modulated(block.pre_norm(given["hidden_states"]), scale, shift)


def _ace_step(block: Any, given: Arguments) -> torch.Tensor:
    shift, scale = (block.scale_shift_table + given["temb"]).chunk(6, dim=1)[:2]
    return modulated(block.self_attn_norm(given["hidden_states"]), scale, shift)


STACKS = (
    BlockStack(  # time enters as the first token, not by modulation
        "StableAudioDiTModel", signal=norm_output("hidden_states"), signal_name="normalised input of block 0"
    ),
    BlockStack("StableAudio3DiTModel", signal=_stable_audio_3),
    BlockStack("AceStepTransformer1DModel", lists=("layers",), signal=_ace_step),
)
