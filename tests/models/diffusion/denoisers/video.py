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
    EasyAnimateTransformer3DModel,
    Kandinsky5Transformer3DModel,
    LTX2VideoTransformer3DModel,
    LTXVideoTransformer3DModel,
    MochiTransformer3DModel,
    SanaVideoTransformer3DModel,
    SkyReelsV2Transformer3DModel,
    WanAnimateTransformer3DModel,
    WanTransformer3DModel,
    WanVACETransformer3DModel,
)

from tests.models.diffusion.denoisers.base import Denoiser, tensor, time, varied

HEADS = {"attention_head_dim": 8, "num_attention_heads": 2}
CHANNELS = {"in_channels": 4, "out_channels": 4}
WAN = {**HEADS, **CHANNELS, "attention_head_dim": 12, "text_dim": 16, "freq_dim": 16, "ffn_dim": 16, "num_layers": 3}


def video_inputs(step: int, text: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_states": tensor(1, 4, 3, 4, 4, seed=step),
        "encoder_hidden_states": tensor(1, text, 16, seed=text),
        "timestep": time(step),
        "return_dict": False,
        **more,
    }


def wan() -> Denoiser:
    return Denoiser(varied(WanTransformer3DModel(**WAN)), video_inputs)


def chrono_edit() -> Denoiser:
    return Denoiser(varied(ChronoEditTransformer3DModel(**WAN)), video_inputs)


def skyreels_v2(**sizes: Any) -> Denoiser:
    return Denoiser(varied(SkyReelsV2Transformer3DModel(**WAN | sizes)), video_inputs)


def wan_vace(layers: tuple[int, ...] = (0, 1), **sizes: Any) -> Denoiser:
    model = WanVACETransformer3DModel(**WAN | {"vace_layers": list(layers), "vace_in_channels": 6} | sizes)

    def inputs(step: int, text: int) -> dict[str, Any]:
        return video_inputs(step, text, control_hidden_states=tensor(1, 6, 3, 4, 4, seed=99))

    return Denoiser(varied(model), inputs)


def wan_animate(every: int = 2, layers: int = 4) -> Denoiser:
    model = WanAnimateTransformer3DModel(
        **WAN | {"in_channels": 12, "latent_channels": 4, "num_layers": layers},
        image_dim=None,
        inject_face_latents_blocks=every,
        motion_encoder_channel_sizes={"4": 4, "8": 4},
        motion_encoder_size=8,
        motion_style_dim=4,
        motion_dim=2,
        motion_encoder_dim=8,
        face_encoder_hidden_dim=8,
        face_encoder_num_heads=2,
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        faces = {
            "pose_hidden_states": tensor(1, 4, 2, 4, 4, seed=97),
            "face_pixel_values": tensor(1, 3, 5, 8, 8, seed=98),
        }
        return video_inputs(step, text, hidden_states=tensor(1, 12, 3, 4, 4, seed=step), **faces)

    return Denoiser(varied(model), inputs)


def easy_animate() -> Denoiser:
    model = EasyAnimateTransformer3DModel(
        **HEADS | CHANNELS | {"attention_head_dim": 16},
        patch_size=2,
        num_layers=2,
        mmdit_layers=2,
        time_embed_dim=8,
        text_embed_dim=16,
    )
    return Denoiser(varied(model), video_inputs)


def ltx() -> Denoiser:
    model = LTXVideoTransformer3DModel(**CHANNELS, **HEADS, cross_attention_dim=16, num_layers=2, caption_channels=16)

    def inputs(step: int, text: int) -> dict[str, Any]:
        return video_inputs(
            step,
            text,
            hidden_states=tensor(1, 12, 4, seed=step),
            encoder_attention_mask=torch.ones(1, text),
            num_frames=3,
            height=2,
            width=2,
        )

    return Denoiser(varied(model), inputs)


def ltx_2(**sizes: Any) -> Denoiser:
    model = LTX2VideoTransformer3DModel(
        **{
            **CHANNELS,
            **HEADS,
            "cross_attention_dim": 16,
            "audio_in_channels": 3,
            "audio_out_channels": 3,
            "audio_num_attention_heads": 2,
            "audio_attention_head_dim": 4,
            "audio_cross_attention_dim": 8,
            "num_layers": 2,
            "caption_channels": 16,
            "rope_double_precision": False,
            **sizes,
        }
    )

    def inputs(step: int, text: int) -> dict[str, Any]:
        return video_inputs(
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


def sana_video() -> Denoiser:
    model = SanaVideoTransformer3DModel(
        **CHANNELS,
        **HEADS | {"attention_head_dim": 12},
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        caption_channels=16,
        sample_size=4,
        rope_max_seq_len=32,
    )
    return Denoiser(varied(model), lambda s, t: video_inputs(s, t, encoder_attention_mask=torch.ones(1, t)))


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
        return video_inputs(step, text, hidden_states=frames, image_rotary_emb=(angles.cos(), angles.sin()))

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
    return Denoiser(varied(model), lambda s, t: video_inputs(s, t, encoder_attention_mask=torch.ones(1, t).bool()))


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
    return Denoiser(varied(model), lambda s, t: video_inputs(s, t, fps=30))


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
        return video_inputs(
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
        return video_inputs(
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
    "EasyAnimateTransformer3DModel": easy_animate,
    "Kandinsky5Transformer3DModel": kandinsky_5,
    "LTX2VideoTransformer3DModel": ltx_2,
    "LTXVideoTransformer3DModel": ltx,
    "MochiTransformer3DModel": mochi,
    "SanaVideoTransformer3DModel": sana_video,
    "SkyReelsV2Transformer3DModel": skyreels_v2,
    "WanAnimateTransformer3DModel": wan_animate,
    "WanTransformer3DModel": wan,
    "WanVACETransformer3DModel": wan_vace,
}
