"""Further image models: text and image in one stream, editing, Lumina-Next."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    Ideogram4Transformer2DModel,
    JoyImageEditPlusTransformer3DModel,
    JoyImageEditTransformer3DModel,
    Krea2Transformer2DModel,
    LuminaNextDiT2DModel,
    QwenImage21Transformer2DModel,
)

from tests.models.diffusion.denoisers.base import Denoiser, tensor, time, varied
from tests.models.diffusion.denoisers.image import HEADS, image_inputs


def ideogram_4() -> Denoiser:
    model = Ideogram4Transformer2DModel(
        in_channels=4,
        num_layers=2,
        **HEADS,
        intermediate_size=16,
        adaln_dim=8,
        llm_features_dim=16,
        mrope_section=(2, 1, 1),
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        # Text tokens are marked 3 and image tokens 2.
        count = text + 16
        is_image = torch.arange(count) >= text
        return {
            "hidden_states": tensor(1, count, 4, seed=step),
            "timestep": time(step, 1.0),
            "encoder_hidden_states": tensor(1, count, 16, seed=text),
            "position_ids": torch.arange(count)[None, :, None].expand(1, count, 3),
            "segment_ids": torch.zeros(1, count, dtype=torch.long),
            "indicator": torch.where(is_image, 2, 3)[None],
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


JOY = {"in_channels": 4, "hidden_size": 16, "num_attention_heads": 2, "text_dim": 16, "num_layers": 2}
JOY |= {"mlp_width_ratio": 1.0, "rope_dim_list": [4, 2, 2]}


def joy_image() -> Denoiser:
    model = JoyImageEditTransformer3DModel(**JOY)
    return Denoiser(varied(model), lambda s, t: image_inputs(s, t, hidden_states=tensor(1, 4, 2, 8, 8, seed=s)))


def joy_image_plus() -> Denoiser:
    model = JoyImageEditPlusTransformer3DModel(**JOY)

    def inputs(step: int, text: int) -> dict[str, Any]:
        # Patches of two pictures, each with its own number of rows and columns.
        more = {"shape_list": [[(1, 4, 4), (1, 2, 2)]], "encoder_hidden_states_mask": torch.ones(1, text)}
        return image_inputs(step, text, hidden_states=tensor(1, 20, 4, 1, 2, 2, seed=step), **more)

    return Denoiser(varied(model), inputs)


def krea_2(in_channels: int = 4) -> Denoiser:
    model = Krea2Transformer2DModel(
        in_channels=in_channels,
        num_layers=2,
        **HEADS,
        num_key_value_heads=1,
        intermediate_size=16,
        timestep_embed_dim=8,
        text_hidden_dim=16,
        num_text_layers=2,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=16,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 2, 2),
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return {
            "hidden_states": tensor(1, 16, 4, seed=step),
            "encoder_hidden_states": tensor(1, text, 2, 16, seed=text),
            "timestep": time(step, 1.0),
            "position_ids": torch.arange(text + 16)[:, None].expand(text + 16, 3),
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


def lumina_next() -> Denoiser:
    model = LuminaNextDiT2DModel(
        sample_size=8,
        in_channels=4,
        hidden_size=16,
        num_layers=2,
        num_attention_heads=2,
        num_kv_heads=1,
        multiple_of=8,
        cross_attention_dim=16,
    )
    angles = tensor(384, 384, 4, seed=1)

    def inputs(step: int, text: int) -> dict[str, Any]:
        rotary = torch.polar(torch.ones_like(angles), angles)
        more = {"encoder_mask": torch.ones(1, text), "image_rotary_emb": rotary, "timestep": time(step, 1.0)}
        more["cross_attention_kwargs"] = {}
        return image_inputs(step, text, **more)

    return Denoiser(varied(model), inputs)


def qwen_image_21(causal: bool = True) -> Denoiser:
    model = QwenImage21Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        **HEADS,
        context_in_dim=16,
        mlp_ratio=1,
        axes_dims_rope=(4, 2, 2),
        causal_condition=causal,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        # One slot of the text stands for two by two image tokens; a reference image precedes the noisy one.
        slots = torch.tensor([[False] * (text - 1) + [True] + [True] * 4])
        return {
            "hidden_states": tensor(1, 20, 4, seed=step),
            "encoder_hidden_states": tensor(1, text, 16, seed=text),
            "timestep": time(step, 1.0),
            "img_shapes": [[(1, 2, 2), (1, 4, 4)]],
            "img_mask": slots,
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


DENOISERS = {
    "Ideogram4Transformer2DModel": ideogram_4,
    "JoyImageEditPlusTransformer3DModel": joy_image_plus,
    "JoyImageEditTransformer3DModel": joy_image,
    "Krea2Transformer2DModel": krea_2,
    "LuminaNextDiT2DModel": lumina_next,
    "QwenImage21Transformer2DModel": qwen_image_21,
}
