"""Video models, with or without sound."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.models.block_stack import (
    IMAGE_FIRST,
    Arguments,
    BlockStack,
    modulated,
    norm_output,
    single_table,
)

__all__ = ["STACKS"]

_DOUBLE_SINGLE = ("transformer_blocks", "single_transformer_blocks")
_PROJECTED = "projected time embedding e0"
_ADAPTIVE = norm_output("hidden_states", emb="temb")


def _time_embedding(block: Any, given: Arguments) -> torch.Tensor:
    embedding: torch.Tensor = given["temb"]
    return embedding


def _hunyuan_video(block: Any, given: Arguments) -> torch.Tensor:
    # Image-to-video by token replacement modulates the first frame's tokens on their own.
    if given.get("token_replace_emb") is None:
        return _ADAPTIVE(block, given)
    return norm_output("hidden_states", "temb", "token_replace_emb", "num_tokens")(block, given)


def _cosmos(block: Any, given: Arguments) -> torch.Tensor:
    tokens, position = given["hidden_states"], given.get("extra_pos_emb")
    if position is not None:
        tokens = tokens + position
    signal: torch.Tensor = block.norm1(tokens, given["embedded_timestep"], given["temb"])[0]
    return signal


def _kandinsky_5(block: Any, given: Arguments) -> torch.Tensor:
    shift, scale = block.visual_modulation(given["time_embed"]).unsqueeze(1).chunk(9, dim=-1)[:2]
    return modulated(block.self_attention_norm(given["visual_embed"].float()), scale.float(), shift.float())


def _face_after_the_last_block(denoiser: Any) -> str | None:
    if (len(denoiser.blocks) - 1) % denoiser.config.inject_face_latents_blocks == 0:
        return "the face is added after its last block, where it would be counted twice"
    return None


def _control_unchanged(given: Arguments) -> Any:
    # The hint that is added between the blocks, and the control tokens for the next control block.
    return given["control_hidden_states"], given["control_hidden_states"]


def _hint_after_the_last_block(denoiser: Any) -> str | None:
    if len(denoiser.blocks) - 1 in denoiser.config.vace_layers:
        return "a control hint is added after its last block, so the control blocks cannot be skipped with the stack"
    return None


def _wan(model: str, **details: Any) -> BlockStack:
    """Wan and its relatives have one stream of video tokens; text enters by cross-attention and does not change."""
    details = {"lists": ("blocks",), **details}
    return BlockStack(model, signal=_time_embedding, signal_name=_PROJECTED, **details)


STACKS = (
    _wan("WanTransformer3DModel"),
    _wan("ChronoEditTransformer3DModel"),
    _wan("SkyReelsV2Transformer3DModel"),
    # Faces are added between blocks; no reused step reads them there.
    _wan("WanAnimateTransformer3DModel", refuses=_face_after_the_last_block),
    # The control blocks run first and feed the blocks alone, so they are skipped with them.
    _wan(
        "WanVACETransformer3DModel",
        lists=("vace_blocks", "blocks"),
        bypass={"vace_blocks": _control_unchanged},
        refuses=_hint_after_the_last_block,
    ),
    BlockStack("LTXVideoTransformer3DModel", signal=single_table("temb")),
    BlockStack(
        "LTX2VideoTransformer3DModel", streams=("hidden_states", "audio_hidden_states"), signal=single_table("temb")
    ),
    BlockStack("AllegroTransformer3DModel", signal=single_table("temb")),
    BlockStack("SanaVideoTransformer3DModel", signal=single_table("timestep")),
    BlockStack("MochiTransformer3DModel", streams=IMAGE_FIRST, signal=_ADAPTIVE),
    BlockStack(
        "CogVideoXTransformer3DModel", streams=IMAGE_FIRST, signal=_time_embedding, signal_name="time_embedding"
    ),
    # CogVideoX with faces added between its blocks.
    BlockStack("ConsisIDTransformer3DModel", streams=IMAGE_FIRST, signal=_time_embedding, signal_name="time_embedding"),
    BlockStack("HunyuanVideo15Transformer3DModel", streams=IMAGE_FIRST, signal=_ADAPTIVE),
    BlockStack("HunyuanVideoTransformer3DModel", lists=_DOUBLE_SINGLE, streams=IMAGE_FIRST, signal=_hunyuan_video),
    BlockStack(
        "HunyuanVideoFramepackTransformer3DModel", lists=_DOUBLE_SINGLE, streams=IMAGE_FIRST, signal=_hunyuan_video
    ),
    BlockStack(
        "EasyAnimateTransformer3DModel",
        streams=IMAGE_FIRST,
        signal=norm_output("hidden_states", "encoder_hidden_states", "temb"),
    ),
    BlockStack("CosmosTransformer3DModel", signal=_cosmos),
    BlockStack(
        "Kandinsky5Transformer3DModel",
        lists=("visual_transformer_blocks",),
        streams=("visual_embed",),
        signal=_kandinsky_5,
    ),
)
