"""Tiny random denoisers with inputs of their own: no pipeline, no text encoder, no download."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import diffusers
import pytest
import torch
from packaging.version import Version

from tests.helpers.tiny import tensor, varied

NEWEST = "0.42"
"""The diffusers whose models these are; an older one lacks some of them."""

if Version(diffusers.__version__) < Version(NEWEST):
    pytest.skip(f"these models need diffusers {NEWEST}, this is {diffusers.__version__}", allow_module_level=True)


@dataclass(frozen=True)
class Denoiser:
    """A model and the arguments of one call: `inputs(step, text)`, for a step and a number of text tokens."""

    model: Any
    inputs: Callable[[int, int], dict[str, Any]]


def model_of(name: str, **sizes: Any) -> Any:
    """A model of this class with random weights, and with `SIZES` where nothing else is said."""
    kind = getattr(diffusers, name)
    known = {size: value for size, value in SIZES.items() if size in inspect.signature(kind.__init__).parameters}
    return varied(kind(**{size: value for size, value in (known | sizes).items() if value is not OWN}))


def denoiser(name: str, **changed: Any) -> Denoiser:
    """The tiny model of this class; `changed` goes over its sizes."""
    sizes, inputs = MODELS[name]
    model = model_of(name, **sizes | changed)
    return Denoiser(model, lambda step, text: {"return_dict": False, **inputs(step, text, model.config)})


SIZES = {
    "attention_head_dim": 8,
    "axes_dims_rope": (2, 2, 4),
    "cap_feat_dim": 16,
    "caption_channels": 16,
    "caption_projection_dim": 16,
    "condition_dim": 4,
    "context_in_dim": 16,
    "cross_attention_dim": 16,
    "depth": 2,
    "ffn_dim": 16,
    "freq_dim": 16,
    "hidden_size": 16,
    "in_channels": 4,
    "intermediate_size": 16,
    "joint_attention_dim": 16,
    "max_text_seq_length": 6,
    "mlp_width_ratio": 1.0,
    "multiple_of": 8,
    "norm_num_groups": 2,
    "num_attention_heads": 2,
    "num_cross_attention_heads": 2,
    "num_heads": 2,
    "num_key_value_heads": 1,
    "num_kv_heads": 1,
    "num_layers": 2,
    "num_refiner_layers": 1,
    "num_single_layers": 2,
    "out_channels": 4,
    "pooled_projection_dim": 16,
    "rope_axes_dim": (2, 2, 4),
    "rope_dim_list": [4, 2, 2],
    "sample_frames": 9,
    "sample_height": 4,
    "sample_size": 8,
    "sample_width": 4,
    "text_dim": 16,
    "text_embed_2_dim": 12,
    "text_embed_dim": 16,
    "time_embed_dim": 8,
}
"""Of every model that has a size of this name, unless it says another."""
OWN: Any = object()
"""In place of a size: the default of the class."""

Inputs = Callable[[int, int, Any], dict[str, Any]]


def time(step: int, scale: float = 1.0) -> torch.Tensor:
    """The time of a step, falling from `scale`."""
    return torch.tensor([scale * (0.9 - 0.05 * step)])


def ids(count: int, axes: int) -> torch.Tensor:
    """Positions of so many tokens."""
    return torch.arange(count, dtype=torch.float32)[:, None].expand(count, axes).contiguous()


def ones(*shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.ones(1, *shape, dtype=dtype)


def angles(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary angles as their cosines and sines."""
    drawn = tensor(*shape, seed=1)
    return drawn.cos(), drawn.sin()


def call(*shape: int, scale: float = 1.0, **more: Callable[[int, int], Any]) -> Inputs:
    """Latents of this shape, a text and a time; `more` says by step and text what else is given."""

    def inputs(step: int, text: int, config: Any) -> dict[str, Any]:
        given = {
            "hidden_states": tensor(1, *shape, seed=step),
            "encoder_hidden_states": tensor(1, text, 16, seed=text),
            "timestep": time(step, scale),
        }
        return given | {name: value(step, text) for name, value in more.items()}

    return inputs


image = partial(call, 4, 8, 8)
video = partial(call, 4, 3, 4, 4, scale=1000.0)


def text_mask(dtype: torch.dtype | None = None) -> Callable[[int, int], torch.Tensor]:
    return lambda _, text: ones(text, dtype=dtype)


def pooled(size: int) -> Callable[[int, int], torch.Tensor]:
    return lambda _, text: tensor(1, size, seed=text)


def given(value: Any) -> Callable[[int, int], Any]:
    """The same at every call."""
    return lambda _step, _text: value


# -- images -----------------------------------------------------------------------------------------------------------


def flux(step: int, text: int, config: Any, axes: int = 3) -> dict[str, Any]:
    return {
        **call(9, config.in_channels)(step, text, config),
        "img_ids": ids(9, axes),
        "txt_ids": ids(text, axes),
    }


def flux_pooled(step: int, text: int, config: Any) -> dict[str, Any]:
    return flux(step, text, config) | {"pooled_projections": tensor(1, 16, seed=text)}


def bria_fibo(step: int, text: int, config: Any) -> dict[str, Any]:
    layers = [tensor(1, text, 12, seed=10 * text + i) for i in range(4)]
    return flux(step, text, config) | {"text_encoder_layers": layers}


def dit(step: int, text: int, config: Any) -> dict[str, Any]:
    # A class instead of a text.
    latents, at = tensor(1, 4, 8, 8, seed=step), time(step, 1000.0).long()
    return {"hidden_states": latents, "timestep": at, "class_labels": torch.tensor([text % 8])}


def hidream(step: int, text: int, config: Any) -> dict[str, Any]:
    return {
        "hidden_states": tensor(1, 4, 8, 8, seed=step),
        "timesteps": time(step, 1000.0),
        "encoder_hidden_states_t5": tensor(1, text + 1, 16, seed=text),
        "encoder_hidden_states_llama3": tensor(4, 1, text, 12, seed=text),
        "pooled_embeds": tensor(1, 16, seed=text),
    }


def z_image(step: int, text: int, config: Any) -> dict[str, Any]:
    return {"x": [tensor(4, 1, 8, 8, seed=step)], "t": time(step), "cap_feats": [tensor(text, 16, seed=text)]}


def omnigen(step: int, text: int, config: Any) -> dict[str, Any]:
    count = text + 1 + 16
    return {
        "hidden_states": tensor(1, 4, 8, 8, seed=step),
        "timestep": time(step),
        "input_ids": torch.arange(text)[None],
        "input_img_latents": [],
        "input_image_sizes": {},
        "attention_mask": ones(count, count),
        "position_ids": torch.arange(count)[None],
    }


def ideogram_4(step: int, text: int, config: Any) -> dict[str, Any]:
    # Text tokens are marked 3 and image tokens 2. Branches have latents of their own, which must follow each other from
    # step to step, as those of a window do.
    count = text + 16
    return {
        "hidden_states": tensor(1, count, 4, seed=text) + 0.5 * tensor(1, count, 4, seed=step),
        "timestep": time(step),
        "encoder_hidden_states": tensor(1, count, 16, seed=text),
        "position_ids": torch.arange(count)[None, :, None].expand(1, count, 3),
        "segment_ids": torch.zeros(1, count, dtype=torch.long),
        "indicator": torch.where(torch.arange(count) >= text, 2, 3)[None],
    }


def qwen_image_21(step: int, text: int, config: Any) -> dict[str, Any]:
    # One slot of the text stands for two by two image tokens; a reference image precedes the noisy one.
    slots = torch.tensor([[False] * (text - 1) + [True] + [True] * 4])
    return {**call(20, 4)(step, text, config), "img_shapes": [[(1, 2, 2), (1, 4, 4)]], "img_mask": slots}


def hunyuan_dit(step: int, text: int, config: Any) -> dict[str, Any]:
    # Its texts are padded to one length.
    texts = {name: tensor(1, 4, 16, seed=text + i) for i, name in enumerate(["", "_t5"])}
    return {
        "hidden_states": tensor(1, 4, 8, 8, seed=step),
        "timestep": time(step, 1000.0),
        **{f"encoder_hidden_states{name}": value for name, value in texts.items()},
        **{f"text_embedding_mask{name}": ones(4) for name in texts},
        "image_rotary_emb": angles(16, 8),
    }


SECOND_TEXT: dict[str, Callable[[int, int], Any]] = {
    "encoder_attention_mask": text_mask(),
    "encoder_hidden_states_2": lambda _, text: tensor(1, 3, 12, seed=text),
    "encoder_attention_mask_2": given(torch.tensor([[1, 1, 0]])),
}
PLACE = {"target_size": given(torch.tensor([[8.0, 8.0]])), "crop_coords": given(torch.zeros(1, 2))}
COGVIEW = image(scale=1000.0, original_size=PLACE["target_size"], **PLACE)
MASKED = image(scale=1000.0, encoder_attention_mask=text_mask())
GLM = image(
    scale=1000.0,
    prior_token_id=given(torch.arange(16)[None] % 8),
    prior_token_drop=given(torch.tensor([False])),
    **PLACE,
)
AURA_FLOW = {"num_mmdit_layers": 2, "num_single_dit_layers": 2, "pos_embed_max_size": 16}
FLUX_SIZES = {"in_channels": 8, "out_channels": OWN}
IMAGES: dict[str, tuple[dict[str, Any], Inputs]] = {
    "AuraFlowTransformer2DModel": (AURA_FLOW, image()),
    "BriaFiboTransformer2DModel": ({**FLUX_SIZES, "text_encoder_dim": 12, "pooled_projection_dim": OWN}, bria_fibo),
    "BriaTransformer2DModel": ({**FLUX_SIZES, "pooled_projection_dim": OWN}, flux),
    "ChromaTransformer2DModel": (
        {**FLUX_SIZES, "approximator_num_channels": 8, "approximator_hidden_dim": 16, "approximator_layers": 1},
        flux,
    ),
    "CogView3PlusTransformer2DModel": ({"pos_embed_max_size": 8}, COGVIEW),
    "CogView4Transformer2DModel": ({"rope_axes_dim": (8, 8)}, COGVIEW),
    "DiTTransformer2DModel": ({"num_embeds_ada_norm": 8, "out_channels": OWN}, dit),
    "Flux2Transformer2DModel": (
        {**FLUX_SIZES, "axes_dims_rope": (2,) * 4, "timestep_guidance_channels": 16, "guidance_embeds": False},
        partial(flux, axes=4),
    ),
    "FluxTransformer2DModel": (FLUX_SIZES, flux_pooled),
    "GlmImageTransformer2DModel": ({"prior_vq_quantizer_codebook_size": 8}, GLM),
    "HiDreamImageTransformer2DModel": (
        {"patch_size": 2, "caption_channels": [16, 12], "text_emb_dim": 16, "num_routed_experts": 2}
        | {"num_activated_experts": 1, "axes_dims_rope": (4, 2, 2), "max_resolution": (16, 16)}
        | {"llama_layers": [0, 1, 2, 3], "force_inference_output": True},
        hidream,
    ),
    "HunyuanDiT2DModel": (
        {"patch_size": 2, "num_layers": 4, "cross_attention_dim_t5": 16, "text_len": 4, "text_len_t5": 4}
        | {"use_style_cond_and_image_meta_size": False},
        hunyuan_dit,
    ),
    "HunyuanImageTransformer2DModel": (
        {"num_layers": 1, "num_single_layers": 1, "patch_size": (2, 2), "rope_axes_dim": (4, 4)},
        image(scale=1000.0, **SECOND_TEXT),
    ),
    "Ideogram4Transformer2DModel": ({"adaln_dim": 8, "llm_features_dim": 16, "mrope_section": (2, 1, 1)}, ideogram_4),
    # Patches of two pictures, each with its own number of rows and columns.
    "JoyImageEditPlusTransformer3DModel": (
        {"out_channels": OWN},
        call(
            *(20, 4, 1, 2, 2),
            scale=1000.0,
            shape_list=given([[(1, 4, 4), (1, 2, 2)]]),
            encoder_hidden_states_mask=text_mask(),
        ),
    ),
    "JoyImageEditTransformer3DModel": ({"out_channels": OWN}, call(4, 2, 8, 8, scale=1000.0)),
    "Krea2Transformer2DModel": (
        {"timestep_embed_dim": 8, "text_hidden_dim": 16, "num_text_layers": 2, "text_num_attention_heads": 2}
        | {"text_num_key_value_heads": 2, "text_intermediate_size": 16, "num_layerwise_text_blocks": 1}
        | {"num_refiner_text_blocks": 1, "axes_dims_rope": (4, 2, 2)},
        call(
            *(16, 4),
            encoder_hidden_states=lambda _, text: tensor(1, text, 2, 16, seed=text),
            position_ids=lambda _, text: torch.arange(text + 16)[:, None].expand(text + 16, 3),
        ),
    ),
    "LongCatImageTransformer2DModel": ({"in_channels": 8}, flux),
    "Lumina2Transformer2DModel": (
        {"axes_dim_rope": (4, 2, 2), "axes_lens": (32, 16, 16)},
        image(encoder_attention_mask=text_mask(torch.bool)),
    ),
    "LuminaNextDiT2DModel": (
        {},
        image(
            encoder_mask=text_mask(),
            image_rotary_emb=lambda *_: torch.polar(torch.ones(384, 384, 4), tensor(384, 384, 4, seed=1)),
            cross_attention_kwargs=lambda *_: {},
        ),
    ),
    "OmniGenTransformer2DModel": (
        {"num_key_value_heads": 2, "intermediate_size": 32, "pad_token_id": 0, "vocab_size": 32}
        | {"max_position_embeddings": 64, "original_max_position_embeddings": 64, "time_step_dim": 8}
        | {"rope_scaling": {"long_factor": [1] * 4, "short_factor": [1] * 4, "type": "su"}, "pos_embed_max_size": 16},
        omnigen,
    ),
    "OvisImageTransformer2DModel": ({"in_channels": 8, "out_channels": 8}, flux),
    "PRXTransformer2DModel": ({"mlp_ratio": 2.0, "axes_dim": [4, 4]}, image()),
    "PixArtTransformer2DModel": ({"out_channels": OWN}, MASKED),
    "QwenImage21Transformer2DModel": ({"mlp_ratio": 1, "axes_dims_rope": (4, 2, 2)}, qwen_image_21),
    "QwenImageTransformer2DModel": (
        {"in_channels": 16},
        call(16, 16, encoder_hidden_states_mask=text_mask(torch.long), img_shapes=given([[(1, 4, 4)]])),
    ),
    "SD3Transformer2DModel": (
        {"num_layers": 3, "pos_embed_max_size": 8, "dual_attention_layers": (0,)},
        image(scale=1000.0, pooled_projections=pooled(16)),
    ),
    "SanaTransformer2DModel": ({"cross_attention_head_dim": 8}, MASKED),
    "ZImageTransformer2DModel": (
        {"dim": 16, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2, "axes_dims": [2, 2, 4]}
        | {"axes_lens": [64, 16, 16]},
        z_image,
    ),
}

# -- videos, sound, and priors that make embeddings -------------------------------------------------------------------


def allegro(step: int, text: int, config: Any) -> dict[str, Any]:
    # Rotary angles and positions along time, height and width.
    grid = torch.stack([axis.flatten() for axis in torch.meshgrid(*map(torch.arange, (3, 2, 2)), indexing="ij")])
    rotary = tuple((tensor(4, 4, seed=i).cos(), tensor(4, 4, seed=i).sin()) for i in range(3))
    more = {"attention_mask": ones(3, 4, 4), "image_rotary_emb": (rotary, tuple(grid[:, None]))}
    return video(encoder_attention_mask=text_mask())(step, text, config) | more


def framepack(step: int, text: int, config: Any) -> dict[str, Any]:
    # Beside the frames to make: one clean frame, and past ones at half and quarter resolution.
    past = {"clean": (1, 0), "history_2x": (2, 1), "history_4x": (4, 3)}
    return {
        **video(**HUNYUAN, image_embeds=given(tensor(1, 3, 8, seed=5)))(step, text, config),
        "indices_latents": torch.arange(7, 10),
        **{f"latents_{name}": tensor(1, 4, count, 4, 4, seed=20 + first) for name, (count, first) in past.items()},
        **{f"indices_latents_{name}": torch.arange(first, first + count) for name, (count, first) in past.items()},
    }


def packed(step: int, text: int, config: Any) -> dict[str, Any]:
    # Text, five rows of sound, eight of frames. Sound has a time of its own, text that of clean data.
    rows = torch.arange(text + 13)
    of_text, of_sound, of_frames = rows.split((text, 5, 8))
    return {
        "hidden_states": tensor(1, 8, 16, seed=step),
        "audio_hidden_states": tensor(1, 5, 32, seed=step + 1),
        "encoder_hidden_states": tensor(1, text, 16, seed=text),
        "timestep": torch.cat([torch.zeros(1), time(step), time(step + 1)]),
        "timestep_indices": (rows >= text).long() + (rows >= text + 5).long(),
        "token_tags": torch.tensor([1] * text + [2] * 5 + [0] * 8),
        "position_ids": ids(text + 13, 3),
        "text_indices": of_text,
        "audio_indices": of_sound,
        "video_indices": of_frames,
    }


def prior(step: int, text: int, config: Any) -> dict[str, Any]:
    # Its texts are padded to one length.
    return {
        "hidden_states": tensor(1, 12, seed=step),
        "timestep": time(step, 1000.0),
        "proj_embedding": tensor(1, 12, seed=text),
        "encoder_hidden_states": tensor(1, 5, 12, seed=text),
        "attention_mask": ones(5, dtype=torch.bool),
    }


def stable_audio(step: int, text: int, config: Any) -> dict[str, Any]:
    width = config.global_states_input_dim
    more = {"global_hidden_states": tensor(1, 1, width, seed=text), "rotary_embedding": angles(9, 4)}
    return call(4, 8)(step, text, config) | more


HUNYUAN: dict[str, Callable[[int, int], Any]] = {"encoder_attention_mask": text_mask(), "pooled_projections": pooled(8)}
WAN = {"attention_head_dim": 12, "num_layers": 3}
COGVIDEOX = call(3, 4, 4, 4, scale=1000.0, image_rotary_emb=given(angles(12, 8)))
LTX = partial(call, 12, 4, scale=1000.0, num_frames=given(3), height=given(2), width=given(2))
VIDEOS: dict[str, tuple[dict[str, Any], Inputs]] = {
    "AceStepTransformer1DModel": (
        {"num_hidden_layers": 2, "head_dim": 8, "in_channels": 12, "audio_acoustic_hidden_dim": 4}
        | {"encoder_hidden_size": 16},
        call(8, 4, timestep_r=lambda step, _: time(step), context_latents=given(tensor(1, 8, 8, seed=9))),
    ),
    "AllegroTransformer3DModel": ({"attention_head_dim": 12, "cross_attention_dim": 24, "sample_frames": 3}, allegro),
    "ChronoEditTransformer3DModel": (WAN, video()),
    "CogVideoXTransformer3DModel": ({"use_rotary_positional_embeddings": True}, COGVIDEOX),
    "ConsisIDTransformer3DModel": ({"use_rotary_positional_embeddings": True}, COGVIDEOX),
    # A padding mask would be resized by torchvision.
    "CosmosTransformer3DModel": (
        {"attention_head_dim": 12, "adaln_lora_dim": 4, "max_size": (4, 8, 8), "concat_padding_mask": False},
        video(fps=given(30)),
    ),
    "EasyAnimateTransformer3DModel": (
        {"attention_head_dim": 16, "patch_size": 2, "mmdit_layers": 2, "sample_height": OWN, "sample_width": OWN},
        video(),
    ),
    "HunyuanVideo15Transformer3DModel": (
        {"image_embed_dim": 8, "target_size": 16, "task_type": "t2v"},
        video(**SECOND_TEXT, image_embeds=given(torch.zeros(1, 2, 8))),
    ),
    "HunyuanVideoFramepackTransformer3DModel": (
        {"num_layers": 1, "num_single_layers": 1, "pooled_projection_dim": 8, "guidance_embeds": False}
        | {"has_image_proj": True, "image_proj_dim": 8, "has_clean_x_embedder": True},
        framepack,
    ),
    "HunyuanVideoTransformer3DModel": ({"pooled_projection_dim": 8, "guidance_embeds": False}, video(**HUNYUAN)),
    "Kandinsky5Transformer3DModel": (
        {"in_text_dim": 16, "in_text_dim2": 8, "time_dim": 8, "model_dim": 16, "ff_dim": 32, "num_text_blocks": 1}
        | {"num_visual_blocks": 2, "axes_dims": (4, 2, 2)},
        call(
            *(3, 4, 4, 4),
            scale=1000.0,
            pooled_projections=pooled(8),
            visual_rope_pos=given([torch.arange(3), torch.arange(2), torch.arange(2)]),
            text_rope_pos=lambda _, text: torch.arange(text),
            return_dict=given(True),
        ),
    ),
    "LTX2VideoTransformer3DModel": (
        {"audio_in_channels": 3, "audio_out_channels": 3, "audio_num_attention_heads": 2, "audio_attention_head_dim": 4}
        | {"audio_cross_attention_dim": 8, "rope_double_precision": False},
        LTX(
            audio_hidden_states=lambda step, _: tensor(1, 5, 3, seed=step),
            audio_encoder_hidden_states=lambda _, text: tensor(1, text, 16, seed=text + 1),
            sigma=lambda step, _: time(step, 1000.0),
            audio_num_frames=given(5),
        ),
    ),
    "LTXVideoTransformer3DModel": ({}, LTX(encoder_attention_mask=text_mask())),
    "MiniMaxH3Transformer3DModel": ({"in_channels": 4, "time_embed_hidden_dim": 16, "rope_freq_dim": 1}, packed),
    "MochiTransformer3DModel": (
        {"pooled_projection_dim": 8, "max_sequence_length": 8, "out_channels": OWN},
        video(encoder_attention_mask=text_mask(torch.bool)),
    ),
    "PriorTransformer": ({"embedding_dim": 12, "num_embeddings": 5, "time_embed_dim": OWN}, prior),
    "SanaVideoTransformer3DModel": (
        {"attention_head_dim": 12, "cross_attention_head_dim": 12, "cross_attention_dim": 24, "sample_size": 4}
        | {"rope_max_seq_len": 32},
        video(encoder_attention_mask=text_mask()),
    ),
    "SkyReelsV2Transformer3DModel": (WAN, video()),
    "StableAudio3DiTModel": (
        {"io_channels": 4, "embed_dim": 16, "cond_token_dim": 16, "global_cond_dim": 16, "timestep_features_dim": 8}
        | {"ff_mult": 1.0, "num_memory_tokens": 2},
        call(4, 8, global_hidden_states=pooled(16)),
    ),
    "StableAudioDiTModel": (
        {"num_key_value_attention_heads": 2, "time_proj_dim": 8, "global_states_input_dim": 16}
        | {"cross_attention_input_dim": 16},
        stable_audio,
    ),
    "WanAnimateTransformer3DModel": (
        {**WAN, "in_channels": 12, "latent_channels": 4, "num_layers": 4, "image_dim": None, "motion_style_dim": 4}
        | {"inject_face_latents_blocks": 2, "motion_encoder_channel_sizes": {"4": 4, "8": 4}, "motion_dim": 2}
        | {"motion_encoder_size": 8, "motion_encoder_dim": 8, "face_encoder_hidden_dim": 8}
        | {"face_encoder_num_heads": 2},
        call(
            *(12, 3, 4, 4),
            scale=1000.0,
            pose_hidden_states=given(tensor(1, 4, 2, 4, 4, seed=97)),
            face_pixel_values=given(tensor(1, 3, 5, 8, 8, seed=98)),
        ),
    ),
    "WanTransformer3DModel": (WAN, video()),
    "WanVACETransformer3DModel": (
        {**WAN, "vace_layers": [0, 1], "vace_in_channels": 6},
        video(control_hidden_states=given(tensor(1, 6, 3, 4, 4, seed=99))),
    ),
}
MODELS = IMAGES | VIDEOS
"""Class name -> sizes beside those of all, and inputs by step, text and configuration."""
DENOISERS: dict[str, Callable[..., Denoiser]] = {name: partial(denoiser, name) for name in MODELS}
"""Class name -> factory."""
