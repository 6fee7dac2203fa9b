"""The Hunyuan models of images and videos."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    HunyuanDiT2DModel,
    HunyuanImageTransformer2DModel,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoFramepackTransformer3DModel,
    HunyuanVideoTransformer3DModel,
)

from tests.models.diffusion.denoisers.base import Denoiser, tensor, time, varied
from tests.models.diffusion.denoisers.image import HEADS, image_inputs
from tests.models.diffusion.denoisers.video import CHANNELS, video_inputs


def hunyuan_image() -> Denoiser:
    model = HunyuanImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        **HEADS,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=(2, 2),
        text_embed_dim=16,
        text_embed_2_dim=12,
        rope_axes_dim=(4, 4),
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return image_inputs(
            step,
            text,
            encoder_attention_mask=torch.ones(1, text),
            encoder_hidden_states_2=tensor(1, 3, 12, seed=text),
            encoder_attention_mask_2=torch.tensor([[1, 1, 0]]),
        )

    return Denoiser(varied(model), inputs)


def hunyuan_dit() -> Denoiser:
    model = HunyuanDiT2DModel(
        **HEADS,
        in_channels=4,
        patch_size=2,
        sample_size=8,
        hidden_size=16,
        num_layers=4,
        cross_attention_dim=16,
        cross_attention_dim_t5=16,
        pooled_projection_dim=16,
        text_len=4,
        text_len_t5=4,
        use_style_cond_and_image_meta_size=False,
    )
    angles = tensor(16, 8, seed=1)

    def inputs(step: int, text: int) -> dict[str, Any]:
        # Its texts are padded to one length.
        texts = {name: tensor(1, 4, 16, seed=text + i) for i, name in enumerate(["", "_t5"])}
        return {
            "hidden_states": tensor(1, 4, 8, 8, seed=step),
            "timestep": time(step),
            **{f"encoder_hidden_states{name}": value for name, value in texts.items()},
            **{f"text_embedding_mask{name}": torch.ones(1, 4) for name in texts},
            "image_rotary_emb": (angles.cos(), angles.sin()),
            "return_dict": False,
        }

    return Denoiser(varied(model), inputs)


def hunyuan_video(image_condition: str | None = None) -> Denoiser:
    model = HunyuanVideoTransformer3DModel(
        **CHANNELS,
        **HEADS,
        num_layers=2,
        num_single_layers=2,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 2, 4),
        guidance_embeds=False,
        image_condition_type=image_condition,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        pooled = tensor(1, 8, seed=text)
        return video_inputs(step, text, encoder_attention_mask=torch.ones(1, text), pooled_projections=pooled)

    return Denoiser(varied(model), inputs)


def framepack() -> Denoiser:
    model = HunyuanVideoFramepackTransformer3DModel(
        **CHANNELS,
        **HEADS,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 2, 4),
        guidance_embeds=False,
        has_image_proj=True,
        image_proj_dim=8,
        has_clean_x_embedder=True,
    )
    # Beside the frames to make: one clean frame, and past ones at half and quarter resolution.
    past = {"clean": (1, 0), "history_2x": (2, 1), "history_4x": (4, 3)}
    frames = {f"latents_{name}": tensor(1, 4, count, 4, 4, seed=20 + first) for name, (count, first) in past.items()}
    places = {f"indices_latents_{name}": torch.arange(first, first + count) for name, (count, first) in past.items()}

    def inputs(step: int, text: int) -> dict[str, Any]:
        return video_inputs(
            step,
            text,
            encoder_attention_mask=torch.ones(1, text),
            pooled_projections=tensor(1, 8, seed=text),
            image_embeds=tensor(1, 3, 8, seed=5),
            indices_latents=torch.arange(7, 10),
            **frames,
            **places,
        )

    return Denoiser(varied(model), inputs)


def hunyuan_video_15(**sizes: Any) -> Denoiser:
    model = HunyuanVideo15Transformer3DModel(
        **CHANNELS | sizes,
        **HEADS,
        num_layers=2,
        num_refiner_layers=1,
        text_embed_dim=16,
        text_embed_2_dim=12,
        image_embed_dim=8,
        rope_axes_dim=(2, 2, 4),
        target_size=16,
        task_type="t2v",
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return video_inputs(
            step,
            text,
            encoder_attention_mask=torch.ones(1, text),
            encoder_hidden_states_2=tensor(1, 3, 12, seed=text),
            encoder_attention_mask_2=torch.tensor([[1, 1, 0]]),
            image_embeds=torch.zeros(1, 2, 8),
        )

    return Denoiser(varied(model), inputs)


DENOISERS = {
    "HunyuanDiT2DModel": hunyuan_dit,
    "HunyuanImageTransformer2DModel": hunyuan_image,
    "HunyuanVideo15Transformer3DModel": hunyuan_video_15,
    "HunyuanVideoFramepackTransformer3DModel": framepack,
    "HunyuanVideoTransformer3DModel": hunyuan_video,
}
