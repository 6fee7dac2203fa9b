"""Video models."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AllegroTransformer3DModel,
    ChronoEditTransformer3DModel,
    CogVideoXTransformer3DModel,
    ConsisIDTransformer3DModel,
    CosmosTransformer3DModel,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoFramepackTransformer3DModel,
    HunyuanVideoTransformer3DModel,
    Kandinsky5Transformer3DModel,
    LTX2VideoTransformer3DModel,
    LTXVideoTransformer3DModel,
    MochiTransformer3DModel,
    SkyReelsV2Transformer3DModel,
    WanTransformer3DModel,
    WanVACETransformer3DModel,
)

from denoisers.base import Denoiser, tensor, time, varied

HEADS = {"attention_head_dim": 8, "num_attention_heads": 2}
CHANNELS = {"in_channels": 4, "out_channels": 4}
WAN = {**HEADS, **CHANNELS, "attention_head_dim": 12, "text_dim": 16, "freq_dim": 16, "ffn_dim": 16, "num_layers": 3}


def _video(step: int, text: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_states": tensor(1, 4, 3, 4, 4, seed=step),
        "encoder_hidden_states": tensor(1, text, 16, seed=text),
        "timestep": time(step),
        "return_dict": False,
        **more,
    }


def wan() -> Denoiser:
    return Denoiser(varied(WanTransformer3DModel(**WAN)), _video)


def chrono_edit() -> Denoiser:
    return Denoiser(varied(ChronoEditTransformer3DModel(**WAN)), _video)


def skyreels_v2(**sizes: Any) -> Denoiser:
    return Denoiser(varied(SkyReelsV2Transformer3DModel(**WAN | sizes)), _video)


def wan_vace(layers: tuple[int, ...] = (0, 1), **sizes: Any) -> Denoiser:
    model = WanVACETransformer3DModel(**WAN | {"vace_layers": list(layers), "vace_in_channels": 6} | sizes)

    def inputs(step: int, text: int) -> dict[str, Any]:
        return _video(step, text, control_hidden_states=tensor(1, 6, 3, 4, 4, seed=99))

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
        return _video(step, text, encoder_attention_mask=torch.ones(1, text), pooled_projections=pooled)

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
        return _video(
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


def hunyuan_video_15() -> Denoiser:
    model = HunyuanVideo15Transformer3DModel(
        **CHANNELS,
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
        return _video(
            step,
            text,
            encoder_attention_mask=torch.ones(1, text),
            encoder_hidden_states_2=tensor(1, 3, 12, seed=text),
            encoder_attention_mask_2=torch.tensor([[1, 1, 0]]),
            image_embeds=torch.zeros(1, 2, 8),
        )

    return Denoiser(varied(model), inputs)


def ltx() -> Denoiser:
    model = LTXVideoTransformer3DModel(**CHANNELS, **HEADS, cross_attention_dim=16, num_layers=2, caption_channels=16)

    def inputs(step: int, text: int) -> dict[str, Any]:
        return _video(
            step,
            text,
            hidden_states=tensor(1, 12, 4, seed=step),
            encoder_attention_mask=torch.ones(1, text),
            num_frames=3,
            height=2,
            width=2,
        )

    return Denoiser(varied(model), inputs)


def ltx_2() -> Denoiser:
    model = LTX2VideoTransformer3DModel(
        **CHANNELS,
        **HEADS,
        cross_attention_dim=16,
        audio_in_channels=3,
        audio_out_channels=3,
        audio_num_attention_heads=2,
        audio_attention_head_dim=4,
        audio_cross_attention_dim=8,
        num_layers=2,
        caption_channels=16,
        rope_double_precision=False,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return _video(
            step,
            text,
            hidden_states=tensor(1, 12, 4, seed=step),
            audio_hidden_states=tensor(1, 5, 3, seed=step),
            audio_encoder_hidden_states=tensor(1, text, 16, seed=text + 1),
            sigma=time(step),
            num_frames=3,
            height=2,
            width=2,
            audio_num_frames=5,
        )

    return Denoiser(varied(model), inputs)


def cogvideox(kind: Any = CogVideoXTransformer3DModel, *, use_rotary_positional_embeddings: bool = True) -> Denoiser:
    model = kind(
        **HEADS,
        **CHANNELS,
        time_embed_dim=8,
        text_embed_dim=16,
        num_layers=2,
        sample_width=4,
        sample_height=4,
        sample_frames=9,
        max_text_seq_length=6,
        use_rotary_positional_embeddings=use_rotary_positional_embeddings,
    )
    angles = tensor(12, 8, seed=1)

    def inputs(step: int, text: int) -> dict[str, Any]:
        frames = tensor(1, 3, 4, 4, 4, seed=step)
        return _video(step, text, hidden_states=frames, image_rotary_emb=(angles.cos(), angles.sin()))

    return Denoiser(varied(model), inputs)


def consis_id() -> Denoiser:
    return cogvideox(ConsisIDTransformer3DModel)


def mochi() -> Denoiser:
    model = MochiTransformer3DModel(
        in_channels=4,
        **HEADS,
        num_layers=2,
        pooled_projection_dim=8,
        text_embed_dim=16,
        time_embed_dim=8,
        max_sequence_length=8,
    )
    return Denoiser(varied(model), lambda s, t: _video(s, t, encoder_attention_mask=torch.ones(1, t).bool()))


def cosmos() -> Denoiser:
    model = CosmosTransformer3DModel(
        **CHANNELS,
        **HEADS | {"attention_head_dim": 12},
        num_layers=2,
        text_embed_dim=16,
        adaln_lora_dim=4,
        max_size=(4, 8, 8),
        concat_padding_mask=False,  # the mask would be resized by torchvision
    )
    return Denoiser(varied(model), lambda s, t: _video(s, t, fps=30))


def allegro() -> Denoiser:
    model = AllegroTransformer3DModel(
        **HEADS | {"attention_head_dim": 12},
        num_layers=2,
        cross_attention_dim=24,
        sample_width=4,
        sample_height=4,
        sample_frames=3,
        caption_channels=16,
    )
    # Rotary angles and positions along time, height and width.
    grid = torch.stack([axis.flatten() for axis in torch.meshgrid(*map(torch.arange, (3, 2, 2)), indexing="ij")])
    rotary = tuple((tensor(4, 4, seed=i).cos(), tensor(4, 4, seed=i).sin()) for i in range(3))

    def inputs(step: int, text: int) -> dict[str, Any]:
        return _video(
            step,
            text,
            encoder_attention_mask=torch.ones(1, text),
            attention_mask=torch.ones(1, 3, 4, 4),
            image_rotary_emb=(rotary, tuple(grid[:, None])),
        )

    return Denoiser(varied(model), inputs)


def kandinsky_5() -> Denoiser:
    model = Kandinsky5Transformer3DModel(
        in_text_dim=16,
        in_text_dim2=8,
        time_dim=8,
        model_dim=16,
        ff_dim=32,
        num_text_blocks=1,
        num_visual_blocks=2,
        axes_dims=(4, 2, 2),
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return _video(
            step,
            text,
            hidden_states=tensor(1, 3, 4, 4, 4, seed=step),
            pooled_projections=tensor(1, 8, seed=text),
            visual_rope_pos=[torch.arange(3), torch.arange(2), torch.arange(2)],
            text_rope_pos=torch.arange(text),
            return_dict=True,
        )

    return Denoiser(varied(model), inputs)


DENOISERS = {
    "AllegroTransformer3DModel": allegro,
    "ChronoEditTransformer3DModel": chrono_edit,
    "CogVideoXTransformer3DModel": cogvideox,
    "ConsisIDTransformer3DModel": consis_id,
    "CosmosTransformer3DModel": cosmos,
    "HunyuanVideo15Transformer3DModel": hunyuan_video_15,
    "HunyuanVideoFramepackTransformer3DModel": framepack,
    "HunyuanVideoTransformer3DModel": hunyuan_video,
    "Kandinsky5Transformer3DModel": kandinsky_5,
    "LTX2VideoTransformer3DModel": ltx_2,
    "LTXVideoTransformer3DModel": ltx,
    "MochiTransformer3DModel": mochi,
    "SkyReelsV2Transformer3DModel": skyreels_v2,
    "WanTransformer3DModel": wan,
    "WanVACETransformer3DModel": wan_vace,
}
