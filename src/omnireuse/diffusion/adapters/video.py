"""Video models beside Wan, with or without sound."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.adapters.reading import adaptive_norm, single_table, time_embedding
from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = [
    "ALLEGRO",
    "COGVIDEOX",
    "CONSIS_ID",
    "COSMOS",
    "EASY_ANIMATE",
    "FRAMEPACK",
    "HUNYUAN_VIDEO",
    "HUNYUAN_VIDEO_15",
    "KANDINSKY_5",
    "LTX",
    "LTX_2",
    "MOCHI",
    "SANA_VIDEO",
]

_BLOCKS = ("transformer_blocks",)
_DOUBLE_SINGLE = ("transformer_blocks", "single_transformer_blocks")
_VIDEO_FIRST = ("hidden_states", "encoder_hidden_states")

LTX = BlockStack(model="LTXVideoTransformer3DModel", lists=_BLOCKS, signal=single_table("temb"))
LTX_2 = BlockStack(
    model="LTX2VideoTransformer3DModel",
    lists=_BLOCKS,
    streams=("hidden_states", "audio_hidden_states"),
    signal=single_table("temb"),
)
ALLEGRO = BlockStack(model="AllegroTransformer3DModel", lists=_BLOCKS, signal=single_table("temb"))
SANA_VIDEO = BlockStack(model="SanaVideoTransformer3DModel", lists=_BLOCKS, signal=single_table("timestep"))
MOCHI = BlockStack(model="MochiTransformer3DModel", lists=_BLOCKS, streams=_VIDEO_FIRST, signal=adaptive_norm)
HUNYUAN_VIDEO_15 = BlockStack(
    model="HunyuanVideo15Transformer3DModel", lists=_BLOCKS, streams=_VIDEO_FIRST, signal=adaptive_norm
)
COGVIDEOX = BlockStack(
    model="CogVideoXTransformer3DModel",
    lists=_BLOCKS,
    streams=_VIDEO_FIRST,
    signal=time_embedding,
    signal_name="time_embedding",
)
# CogVideoX with faces added between its blocks.
CONSIS_ID = BlockStack(
    model="ConsisIDTransformer3DModel",
    lists=_BLOCKS,
    streams=_VIDEO_FIRST,
    signal=time_embedding,
    signal_name="time_embedding",
)


def _hunyuan_input(block: Any, arguments: Arguments) -> torch.Tensor:
    # Image-to-video by token replacement modulates the first frame's tokens on their own.
    replacing = arguments.get("token_replace_emb")
    if replacing is None:
        return adaptive_norm(block, arguments)
    tokens, time = arguments["hidden_states"], arguments["temb"]
    modulated: torch.Tensor = block.norm1(tokens, time, replacing, arguments["num_tokens"])[0]
    return modulated


HUNYUAN_VIDEO = BlockStack(
    model="HunyuanVideoTransformer3DModel", lists=_DOUBLE_SINGLE, streams=_VIDEO_FIRST, signal=_hunyuan_input
)
FRAMEPACK = BlockStack(
    model="HunyuanVideoFramepackTransformer3DModel", lists=_DOUBLE_SINGLE, streams=_VIDEO_FIRST, signal=_hunyuan_input
)


def _easy_animate_input(block: Any, arguments: Arguments) -> torch.Tensor:
    video, text = arguments["hidden_states"], arguments["encoder_hidden_states"]
    modulated: torch.Tensor = block.norm1(video, text, arguments["temb"])[0]
    return modulated


EASY_ANIMATE = BlockStack(
    model="EasyAnimateTransformer3DModel", lists=_BLOCKS, streams=_VIDEO_FIRST, signal=_easy_animate_input
)


def _cosmos_input(block: Any, arguments: Arguments) -> torch.Tensor:
    tokens, position = arguments["hidden_states"], arguments.get("extra_pos_emb")
    if position is not None:
        tokens = tokens + position
    modulated: torch.Tensor = block.norm1(tokens, arguments["embedded_timestep"], arguments["temb"])[0]
    return modulated


COSMOS = BlockStack(model="CosmosTransformer3DModel", lists=_BLOCKS, signal=_cosmos_input)


def _kandinsky_5_input(block: Any, arguments: Arguments) -> torch.Tensor:
    shift, scale = block.visual_modulation(arguments["time_embed"]).unsqueeze(1).chunk(9, dim=-1)[:2]
    tokens: torch.Tensor = arguments["visual_embed"].float()
    modulated: torch.Tensor = block.self_attention_norm(tokens) * (scale.float() + 1) + shift.float()
    return modulated


KANDINSKY_5 = BlockStack(
    model="Kandinsky5Transformer3DModel",
    lists=("visual_transformer_blocks",),
    streams=("visual_embed",),
    signal=_kandinsky_5_input,
)
