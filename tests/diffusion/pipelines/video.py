"""Video and audio pipelines, and a prior that makes embeddings."""

from __future__ import annotations

from typing import Any

import torch
from denoisers import hunyuan, other, video
from denoisers.base import tensor, varied
from diffusers import (
    AutoencoderOobleck,
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    DDPMWuerstchenScheduler,
    EDMDPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoPipeline,
    LTXPipeline,
    MochiPipeline,
    SkyReelsV2Pipeline,
    StableAudioPipeline,
    StableCascadePriorPipeline,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
)
from diffusers.models import StableCascadeUNet
from diffusers.pipelines.stable_audio import StableAudioProjectionModel
from tiny import TINY, Tiny
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from pipelines.base import made, texts

__all__ = ["PIPELINES"]

# Asked for its dtype only.
TEXT = {
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
NO_TEXT = {"text_encoder": None, "tokenizer": None}
SIZE = {"height": 32, "width": 32, "num_frames": 9}
SMALL = {"height": 16, "width": 16, "num_frames": 5}


def _wan(kind: Any, **parts: Any) -> Any:
    tiny = TINY["wan"]().pipe
    kept = {name: tiny.components[name] for name in ("tokenizer", "text_encoder", "vae", "scheduler")}
    return kind(**kept, **parts)


def _wan_transformer(seed: int = 0, **more: Any) -> Any:
    sizes = {**video.WAN, "in_channels": 16, "out_channels": 16, "rope_max_seq_len": 32}
    return varied(WanTransformer3DModel(**sizes | more), seed=seed)


def wan_22() -> Tiny:
    """Two experts: the second takes over half-way, with a guidance of its own."""
    pipe = _wan(WanPipeline, transformer=_wan_transformer(), transformer_2=_wan_transformer(seed=5), boundary_ratio=0.8)
    return made(pipe, **SMALL, **texts(), guidance_scale=3.0, guidance_scale_2=2.0)


def wan_i2v() -> Tiny:
    pipe = _wan(WanImageToVideoPipeline, transformer=_wan_transformer(in_channels=36))
    return made(pipe, **SMALL, **texts(), image=tensor(1, 3, 16, 16, seed=7).sigmoid(), guidance_scale=3.0)


def wan_vace() -> Tiny:
    pipe = _wan(WanVACEPipeline, transformer=video.wan_vace(in_channels=16, out_channels=16, vace_in_channels=96).model)
    return made(pipe, **SMALL, **texts(), guidance_scale=3.0)


def skyreels_v2() -> Tiny:
    model = video.skyreels_v2(in_channels=16, out_channels=16).model
    pipe = SkyReelsV2Pipeline(**NO_TEXT, vae=None, transformer=model, scheduler=TINY["wan"]().pipe.scheduler)
    return made(pipe, **SIZE, **texts())


def ltx() -> Tiny:
    pipe = LTXPipeline(scheduler=FlowMatchEulerDiscreteScheduler(), vae=None, **NO_TEXT, transformer=video.ltx().model)
    masks = {f"{kind}prompt_attention_mask": torch.ones(1, 6) for kind in ("", "negative_")}
    return made(pipe, height=64, width=64, num_frames=9, **texts(), **masks, guidance_scale=3.0)


def cogvideox() -> Tiny:
    model = video.cogvideox(use_rotary_positional_embeddings=False).model
    pipe = CogVideoXPipeline(**NO_TEXT, vae=None, transformer=model, scheduler=CogVideoXDDIMScheduler())
    return made(pipe, **SIZE, **texts(), guidance_scale=3.0)


def hunyuan_video() -> Tiny:
    scheduler = FlowMatchEulerDiscreteScheduler()
    parts = {"text_encoder_2": None, "tokenizer_2": None}
    model = hunyuan.hunyuan_video().model
    pipe = HunyuanVideoPipeline(**NO_TEXT, transformer=model, vae=None, scheduler=scheduler, **parts)
    masks = {f"{kind}prompt_attention_mask": torch.ones(1, 6) for kind in ("", "negative_")}
    return made(pipe, **SIZE, **texts(pooled_prompt_embeds=8), **masks, true_cfg_scale=3.0)


def mochi() -> Tiny:
    pipe = MochiPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=None, **NO_TEXT, transformer=video.mochi().model
    )
    masks = {f"{kind}prompt_attention_mask": torch.ones(1, 6).bool() for kind in ("", "negative_")}
    return made(pipe, height=32, width=32, num_frames=7, **texts(), **masks)


def stable_audio() -> Tiny:
    vae = AutoencoderOobleck(
        encoder_hidden_size=6,
        downsampling_ratios=[1, 2],
        decoder_channels=4,
        decoder_input_channels=4,
        audio_channels=2,
        channel_multiples=[2, 4],
        sampling_rate=4,
    )
    projection = StableAudioProjectionModel(text_encoder_dim=16, conditioning_dim=16, min_value=0, max_value=32)
    pipe = StableAudioPipeline(
        vae=vae,
        **NO_TEXT,
        projection_model=varied(projection),
        transformer=other.stable_audio(global_states_input_dim=32).model,
        scheduler=EDMDPMSolverMultistepScheduler(prediction_type="v_prediction", sigma_data=1.0),
    )
    masks = {"attention_mask": torch.ones(1, 6).long(), "negative_attention_mask": torch.ones(1, 6).long()}
    return made(pipe, **texts(), **masks, guidance_scale=3.0, audio_end_in_s=2.0)


def stable_cascade_prior() -> Tiny:
    prior = StableCascadeUNet(
        in_channels=4,
        out_channels=4,
        conditioning_dim=16,
        timestep_ratio_embedding_dim=8,
        block_out_channels=(8, 8),
        num_attention_heads=(2, 2),
        down_num_layers_per_block=(1, 1),
        up_num_layers_per_block=(1, 1),
        switch_level=(False,),
        clip_image_in_channels=8,
        clip_text_in_channels=16,
        clip_text_pooled_in_channels=16,
        dropout=(0.0, 0.0),
    )
    text = {"tokenizer": None, "text_encoder": CLIPTextModelWithProjection(CLIPTextConfig(**TEXT))}
    pipe = StableCascadePriorPipeline(**text, prior=varied(prior), scheduler=DDPMWuerstchenScheduler())
    pooled = {
        "prompt_embeds_pooled": tensor(1, 1, 16, seed=5),
        "negative_prompt_embeds_pooled": tensor(1, 1, 16, seed=6),
    }
    return made(pipe, **texts(), **pooled, height=128, width=128, guidance_scale=3.0, output_type="pt")


PIPELINES = {
    "cogvideox": cogvideox,
    "hunyuan_video": hunyuan_video,
    "ltx": ltx,
    "mochi": mochi,
    "skyreels_v2": skyreels_v2,
    "stable_audio": stable_audio,
    "stable_cascade_prior": stable_cascade_prior,
    "wan_22_two_experts": wan_22,
    "wan_image_to_video": wan_i2v,
    "wan_vace": wan_vace,
}
