"""Image models with one list of blocks, or with lists of their own naming."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.adapters.reading import adaptive_norm, normed, single_table
from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = [
    "AURA_FLOW",
    "COGVIEW_3",
    "COGVIEW_4",
    "DIT",
    "GLM_IMAGE",
    "HIDREAM",
    "HUNYUAN_DIT",
    "HUNYUAN_IMAGE",
    "IDEOGRAM_4",
    "JOY_IMAGE",
    "JOY_IMAGE_PLUS",
    "KREA_2",
    "LUMINA_2",
    "LUMINA_NEXT",
    "OMNIGEN",
    "PIXART",
    "PRIOR",
    "PRX",
    "SANA",
    "SD3",
    "Z_IMAGE",
]

_BLOCKS = ("transformer_blocks",)
_TEXT_FIRST = ("encoder_hidden_states", "hidden_states")
_IMAGE_FIRST = ("hidden_states", "encoder_hidden_states")

SD3 = BlockStack(model="SD3Transformer2DModel", lists=_BLOCKS, streams=_TEXT_FIRST, signal=adaptive_norm)
AURA_FLOW = BlockStack(
    model="AuraFlowTransformer2DModel",
    lists=("joint_transformer_blocks", "single_transformer_blocks"),
    streams=_TEXT_FIRST,
    joined=("single_transformer_blocks",),
    signal=adaptive_norm,
)
HUNYUAN_IMAGE = BlockStack(
    model="HunyuanImageTransformer2DModel",
    lists=("transformer_blocks", "single_transformer_blocks"),
    streams=_IMAGE_FIRST,
    signal=adaptive_norm,
)
LUMINA_NEXT = BlockStack(model="LuminaNextDiT2DModel", lists=("layers",), signal=adaptive_norm)
LUMINA_2 = BlockStack(model="Lumina2Transformer2DModel", lists=("layers",), signal=adaptive_norm)
PIXART = BlockStack(model="PixArtTransformer2DModel", lists=_BLOCKS, signal=single_table("timestep"))
SANA = BlockStack(model="SanaTransformer2DModel", lists=_BLOCKS, signal=single_table("timestep"))
OMNIGEN = BlockStack(
    model="OmniGenTransformer2DModel",
    lists=("layers",),
    signal=normed("input_layernorm"),
    signal_name="normalised input of block 0",
)
PRIOR = BlockStack(
    model="PriorTransformer", lists=_BLOCKS, signal=normed("norm1"), signal_name="normalised input of block 0"
)


def _dit_input(block: Any, arguments: Arguments) -> torch.Tensor:
    tokens: torch.Tensor = arguments["hidden_states"]
    modulated: torch.Tensor = block.norm1(
        tokens, arguments["timestep"], arguments["class_labels"], hidden_dtype=tokens.dtype
    )[0]
    return modulated


DIT = BlockStack(model="DiTTransformer2DModel", lists=_BLOCKS, signal=_dit_input)


def _hunyuan_dit_input(block: Any, arguments: Arguments) -> torch.Tensor:
    modulated: torch.Tensor = block.norm1(arguments["hidden_states"], arguments["temb"])
    return modulated


# Long skips join blocks of this one stack, so they are skipped with it.
HUNYUAN_DIT = BlockStack(model="HunyuanDiT2DModel", lists=("blocks",), signal=_hunyuan_dit_input, has_long_skips=True)


def _cogview_4_input(block: Any, arguments: Arguments) -> torch.Tensor:
    image, text = arguments["hidden_states"], arguments["encoder_hidden_states"]
    modulated: torch.Tensor = block.norm1(image, text, arguments["temb"])[0]
    return modulated


COGVIEW_4 = BlockStack(model="CogView4Transformer2DModel", lists=_BLOCKS, streams=_IMAGE_FIRST, signal=_cogview_4_input)
GLM_IMAGE = BlockStack(model="GlmImageTransformer2DModel", lists=_BLOCKS, streams=_IMAGE_FIRST, signal=_cogview_4_input)


def _cogview_3_input(block: Any, arguments: Arguments) -> torch.Tensor:
    return _cogview_4_input(block, {**arguments, "temb": arguments["emb"]})


COGVIEW_3 = BlockStack(
    model="CogView3PlusTransformer2DModel", lists=_BLOCKS, streams=_IMAGE_FIRST, signal=_cogview_3_input
)


def _prx_input(block: Any, arguments: Arguments) -> torch.Tensor:
    (shift, scale, _gate), _of_mlp = block.modulation(arguments["temb"])
    modulated: torch.Tensor = (1 + scale) * block.img_pre_norm(arguments["hidden_states"]) + shift
    return modulated


PRX = BlockStack(model="PRXTransformer2DModel", lists=("blocks",), signal=_prx_input)


def _hidream_input(block: Any, arguments: Arguments) -> torch.Tensor:
    inner = block.block
    shift, scale = inner.adaLN_modulation(arguments["temb"])[:, None].chunk(12, dim=-1)[:2]
    modulated: torch.Tensor = inner.norm1_i(arguments["hidden_states"]) * (1 + scale) + shift
    return modulated


# Each block gets text features of its own beside the text stream; they count as text tokens of equal number.
HIDREAM = BlockStack(
    model="HiDreamImageTransformer2DModel",
    lists=("double_stream_blocks", "single_stream_blocks"),
    streams=_IMAGE_FIRST,
    joined=("single_stream_blocks",),
    signal=_hidream_input,
)


def _ideogram_4_input(block: Any, arguments: Arguments) -> torch.Tensor:
    scale = block.adaln_modulation(arguments["adaln_input"]).chunk(4, dim=-1)[0]
    modulated: torch.Tensor = block.attention_norm1(arguments["hidden_states"]) * (1 + scale)
    return modulated


IDEOGRAM_4 = BlockStack(model="Ideogram4Transformer2DModel", lists=("layers",), signal=_ideogram_4_input)


def _joy_image_input(block: Any, arguments: Arguments) -> torch.Tensor:
    shift, scale = block.img_mod(arguments["temb"])[:2]
    modulated: torch.Tensor = block.img_norm1(arguments["hidden_states"]) * (1 + scale[:, None]) + shift[:, None]
    return modulated


JOY_IMAGE = BlockStack(
    model="JoyImageEditTransformer3DModel", lists=("double_blocks",), streams=_IMAGE_FIRST, signal=_joy_image_input
)
JOY_IMAGE_PLUS = BlockStack(
    model="JoyImageEditPlusTransformer3DModel",
    lists=("double_blocks",),
    streams=_IMAGE_FIRST,
    signal=_joy_image_input,
)


def _krea_2_input(block: Any, arguments: Arguments) -> torch.Tensor:
    scale, shift = (arguments["temb"].unflatten(-1, (6, -1)) + block.scale_shift_table).unbind(-2)[:2]
    modulated: torch.Tensor = (1 + scale) * block.norm1(arguments["hidden_states"]) + shift
    return modulated


KREA_2 = BlockStack(model="Krea2Transformer2DModel", lists=_BLOCKS, signal=_krea_2_input)


def _z_image_input(block: Any, arguments: Arguments) -> torch.Tensor:
    # Beside clean reference images the noisy tokens have a modulation of their own, and they are what changes.
    time = arguments["adaln_input"] if arguments["adaln_input"] is not None else arguments["adaln_noisy"]
    scale = block.adaLN_modulation(time).unsqueeze(1).chunk(4, dim=2)[0]
    modulated: torch.Tensor = block.attention_norm1(arguments["x"]) * (1 + scale)
    return modulated


Z_IMAGE = BlockStack(model="ZImageTransformer2DModel", lists=("layers",), streams=("x",), signal=_z_image_input)
