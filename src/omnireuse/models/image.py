"""Image models with one list of blocks, or with lists that they name in their own way."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.models.block_stack import (
    IMAGE_FIRST,
    TEXT_FIRST,
    Arguments,
    BlockStack,
    modulated,
    norm_output,
    single_table,
)

__all__ = ["STACKS"]

_ADAPTIVE = norm_output("hidden_states", emb="temb")
_COGVIEW_4 = norm_output("hidden_states", "encoder_hidden_states", "temb")
_NORMALISED = "normalised input of block 0"


def _qwen_image(block: Any, given: Arguments) -> torch.Tensor:
    shift, scale, _gate = block.img_mod(given["temb"]).chunk(2, dim=-1)[0].chunk(3, dim=-1)
    tokens = block.img_norm1(given["hidden_states"])
    # With a second conditioning time the modulation has a row for each; the signal follows the first.
    shift, scale = shift[: len(tokens)].unsqueeze(1), scale[: len(tokens)].unsqueeze(1)
    return torch.addcmul(tokens + shift, tokens, scale)


def _qwen_image_21(block: Any, given: Arguments) -> torch.Tensor:
    scale = given["modulation"].chunk(4, dim=-1)[0].unsqueeze(1)
    is_noisy = given["target_token_mask"]
    if is_noisy is not None:
        # The last row is that of time 0, which modulates text and reference images.
        scale = torch.where(is_noisy[None, :, None], scale[:-1], scale[-1:])
    return modulated(block.img_norm1(given["hidden_states"]), scale)


def _dit(block: Any, given: Arguments) -> torch.Tensor:
    tokens: torch.Tensor = given["hidden_states"]
    result = block.norm1(tokens, given["timestep"], given["class_labels"], hidden_dtype=tokens.dtype)
    signal: torch.Tensor = result[0]
    return signal


def _prx(block: Any, given: Arguments) -> torch.Tensor:
    (shift, scale, _gate), _of_mlp = block.modulation(given["temb"])
    return modulated(block.img_pre_norm(given["hidden_states"]), scale, shift)


def _hidream(block: Any, given: Arguments) -> torch.Tensor:
    inner = block.block
    shift, scale = inner.adaLN_modulation(given["temb"])[:, None].chunk(12, dim=-1)[:2]
    return modulated(inner.norm1_i(given["hidden_states"]), scale, shift)


def _ideogram_4(block: Any, given: Arguments) -> torch.Tensor:
    scale = block.adaln_modulation(given["adaln_input"]).chunk(4, dim=-1)[0]
    return modulated(block.attention_norm1(given["hidden_states"]), scale)


def _joy_image(block: Any, given: Arguments) -> torch.Tensor:
    shift, scale = block.img_mod(given["temb"])[:2]
    return modulated(block.img_norm1(given["hidden_states"]), scale[:, None], shift[:, None])


def _krea_2(block: Any, given: Arguments) -> torch.Tensor:
    scale, shift = (given["temb"].unflatten(-1, (6, -1)) + block.scale_shift_table).unbind(-2)[:2]
    return modulated(block.norm1(given["hidden_states"]), scale, shift)


def _z_image(block: Any, given: Arguments) -> torch.Tensor:
    # Beside clean reference images the noisy tokens, which are what changes, have a modulation of their own.
    time = given["adaln_input"] if given["adaln_input"] is not None else given["adaln_noisy"]
    scale = block.adaLN_modulation(time).unsqueeze(1).chunk(4, dim=2)[0]
    return modulated(block.attention_norm1(given["x"]), scale)


STACKS = (
    BlockStack("QwenImageTransformer2DModel", streams=TEXT_FIRST, signal=_qwen_image),
    BlockStack("QwenImage21Transformer2DModel", signal=_qwen_image_21),
    BlockStack("SD3Transformer2DModel", streams=TEXT_FIRST, signal=_ADAPTIVE),
    BlockStack(
        "AuraFlowTransformer2DModel",
        lists=("joint_transformer_blocks", "single_transformer_blocks"),
        streams=TEXT_FIRST,
        joined=("single_transformer_blocks",),
        signal=_ADAPTIVE,
    ),
    BlockStack(
        "HunyuanImageTransformer2DModel",
        lists=("transformer_blocks", "single_transformer_blocks"),
        streams=IMAGE_FIRST,
        signal=_ADAPTIVE,
    ),
    BlockStack("LuminaNextDiT2DModel", lists=("layers",), signal=_ADAPTIVE),
    BlockStack("Lumina2Transformer2DModel", lists=("layers",), signal=_ADAPTIVE),
    BlockStack("PixArtTransformer2DModel", signal=single_table("timestep")),
    BlockStack("SanaTransformer2DModel", signal=single_table("timestep")),
    BlockStack(
        "OmniGenTransformer2DModel",
        lists=("layers",),
        signal=norm_output("hidden_states", norm="input_layernorm"),
        signal_name=_NORMALISED,
    ),
    BlockStack("PriorTransformer", signal=norm_output("hidden_states"), signal_name=_NORMALISED),
    BlockStack("DiTTransformer2DModel", signal=_dit),
    # Long skips join blocks of this one stack, so they are skipped with it.
    BlockStack(
        "HunyuanDiT2DModel", lists=("blocks",), signal=norm_output("hidden_states", "temb"), has_long_skips=True
    ),
    BlockStack("CogView4Transformer2DModel", streams=IMAGE_FIRST, signal=_COGVIEW_4),
    BlockStack("GlmImageTransformer2DModel", streams=IMAGE_FIRST, signal=_COGVIEW_4),
    BlockStack(
        "CogView3PlusTransformer2DModel",
        streams=IMAGE_FIRST,
        signal=norm_output("hidden_states", "encoder_hidden_states", "emb"),
    ),
    BlockStack("PRXTransformer2DModel", lists=("blocks",), signal=_prx),
    # Each block gets text features of its own beside the text stream; they count as text tokens of equal number.
    BlockStack(
        "HiDreamImageTransformer2DModel",
        lists=("double_stream_blocks", "single_stream_blocks"),
        streams=IMAGE_FIRST,
        joined=("single_stream_blocks",),
        signal=_hidream,
    ),
    BlockStack("Ideogram4Transformer2DModel", lists=("layers",), signal=_ideogram_4),
    BlockStack("JoyImageEditTransformer3DModel", lists=("double_blocks",), streams=IMAGE_FIRST, signal=_joy_image),
    BlockStack("JoyImageEditPlusTransformer3DModel", lists=("double_blocks",), streams=IMAGE_FIRST, signal=_joy_image),
    BlockStack("Krea2Transformer2DModel", signal=_krea_2),
    BlockStack("ZImageTransformer2DModel", lists=("layers",), streams=("x",), signal=_z_image),
)
