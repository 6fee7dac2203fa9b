"""Audio models."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.adapters.reading import normed
from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = ["ACE_STEP", "STABLE_AUDIO", "STABLE_AUDIO_3"]

# Time enters as the first token, not by modulation.
STABLE_AUDIO = BlockStack(
    model="StableAudioDiTModel",
    lists=("transformer_blocks",),
    signal=normed("norm1"),
    signal_name="normalised input of block 0",
)


def _stable_audio_3_input(block: Any, arguments: Arguments) -> torch.Tensor:
    scale, shift = (block.to_scale_shift_gate + arguments["global_modulation"])[:, None].chunk(6, dim=-1)[:2]
    modulated: torch.Tensor = block.pre_norm(arguments["hidden_states"]) * (1 + scale) + shift
    return modulated


STABLE_AUDIO_3 = BlockStack(model="StableAudio3DiTModel", lists=("transformer_blocks",), signal=_stable_audio_3_input)


def _ace_step_input(block: Any, arguments: Arguments) -> torch.Tensor:
    shift, scale = (block.scale_shift_table + arguments["temb"]).chunk(6, dim=1)[:2]
    modulated: torch.Tensor = block.self_attn_norm(arguments["hidden_states"]) * (1 + scale) + shift
    return modulated


ACE_STEP = BlockStack(model="AceStepTransformer1DModel", lists=("layers",), signal=_ace_step_input)
