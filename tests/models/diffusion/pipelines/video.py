"""Video and audio pipelines, and a prior that makes embeddings."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from diffusers import (
    AllegroPipeline,
    AnimateDiffPipeline,
    AutoencoderKLHunyuanVideo15,
    AutoencoderOobleck,
    ClassifierFreeGuidance,
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    DDIMScheduler,
    DDPMWuerstchenScheduler,
    EasyAnimatePipeline,
    EDMDPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    HunyuanVideo15Pipeline,
    HunyuanVideoPipeline,
    Kandinsky5T2VPipeline,
    LTX2Pipeline,
    LTXPipeline,
    MochiPipeline,
    MotionAdapter,
    SanaVideoPipeline,
    SkyReelsV2Pipeline,
    StableAudioPipeline,
    StableCascadePriorPipeline,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
)
from diffusers.models import StableCascadeUNet
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.stable_audio import StableAudioProjectionModel
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.denoisers import hunyuan, other, video
from tests.models.diffusion.denoisers.base import tensor, varied
from tests.models.diffusion.pipelines.base import MASKS, TEXT, around, bare, made, texts

__all__ = ["PIPELINES"]

NO_TEXT = {"text_encoder": None, "tokenizer": None}
SIZE = {"height": 32, "width": 32, "num_frames": 9}
LARGE = {"height": 64, "width": 64, "num_frames": 9}
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


def hunyuan_video_15() -> Tiny:
    vae = AutoencoderKLHunyuanVideo15(
        latent_channels=4, block_out_channels=(16, 16, 16, 16, 16), layers_per_block=1, spatial_compression_ratio=16
    )
    # Latents, those of a first frame, and a mask.
    model, guider = hunyuan.hunyuan_video_15(in_channels=9).model, ClassifierFreeGuidance(guidance_scale=3.0)
    pipe = bare(HunyuanVideo15Pipeline, model, vae=vae, guider=guider)
    more = {}
    for seed, kind in enumerate(("", "negative_")):
        more[f"{kind}prompt_embeds_mask"] = torch.ones(1, 6)
        more[f"{kind}prompt_embeds_2"] = tensor(1, 3, 12, seed=20 + seed)
        more[f"{kind}prompt_embeds_mask_2"] = torch.ones(1, 3)
    return made(pipe, **SIZE, **texts(), **more)


def kandinsky_5() -> Tiny:
    pipe = bare(Kandinsky5T2VPipeline, video.kandinsky_5().model)
    given = {}
    for seed, kind in enumerate(("", "negative_")):
        given[f"{kind}prompt_embeds_qwen"] = tensor(1, 6, 16, seed=seed)
        given[f"{kind}prompt_embeds_clip"] = tensor(1, 8, seed=10 + seed)
        given[f"{kind}prompt_cu_seqlens"] = torch.tensor([0, 6], dtype=torch.int32)
    return made(pipe, **SIZE, **given, guidance_scale=3.0)


def ltx_2() -> Tiny:
    """Frames and sound; the sound's scheduler is a copy that no pipeline attribute holds."""
    heads = {f"{kind}_connector_num_attention_heads": 2 for kind in ("video", "audio")}
    heads |= {f"{kind}_connector_attention_head_dim": 8 for kind in ("video", "audio")}
    heads |= {f"{kind}_connector_num_layers": 1 for kind in ("video", "audio")}
    heads |= {f"{kind}_connector_num_learnable_registers": None for kind in ("video", "audio")}
    connectors = LTX2TextConnectors(caption_channels=16, text_proj_in_factor=2, rope_double_precision=False, **heads)
    model = video.ltx_2(audio_in_channels=128, audio_out_channels=128).model
    pipe = bare(LTX2Pipeline, model, connectors=varied(connectors))
    # Of the autoencoders it wants to know how their latents are scaled.
    for name, channels in (("vae", 4), ("audio_vae", 128)):
        scales = {"latents_mean": torch.zeros(channels), "latents_std": torch.ones(channels)}
        config = SimpleNamespace(scaling_factor=1.0, mel_bins=64, latent_channels=8)
        setattr(pipe, name, SimpleNamespace(**scales, config=config))
    return made(pipe, **LARGE, **texts(32), **MASKS, guidance_scale=3.0)


def animate_diff() -> Tiny:
    parts = TINY["stable_diffusion"]().pipe.components
    motion = MotionAdapter(
        block_out_channels=(4, 8),
        motion_layers_per_block=1,
        motion_norm_num_groups=2,
        motion_num_attention_heads=2,
        motion_mid_block_layers_per_block=1,
    )
    kept = {name: parts[name] for name in ("vae", "text_encoder", "tokenizer", "unet")}
    scheduler = DDIMScheduler(clip_sample=False, steps_offset=1)
    pipe = AnimateDiffPipeline(**kept, motion_adapter=varied(motion), scheduler=scheduler)
    return made(pipe, height=8, width=8, num_frames=2, **texts(), guidance_scale=3.0)


def easy_animate() -> Tiny:
    pipe = bare(EasyAnimatePipeline, video.easy_animate().model)
    pipe.vae = SimpleNamespace(config=SimpleNamespace(latent_channels=4))
    return made(pipe, **SIZE, **texts(), **MASKS, guidance_scale=3.0)


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
    "allegro": around(
        AllegroPipeline,
        video.allegro,
        EulerAncestralDiscreteScheduler,
        **SIZE,
        **texts(),
        **MASKS,
        negative_prompt=None,
        guidance_scale=3.0,
    ),
    "animate_diff": animate_diff,
    "easy_animate": easy_animate,
    "sana_video": around(
        SanaVideoPipeline,
        video.sana_video,
        **{"height": 64, "width": 64, "frames": 9, "use_resolution_binning": False},
        **texts(),
        **MASKS,
        negative_prompt=None,
        guidance_scale=3.0,
    ),
    "cogvideox": around(
        CogVideoXPipeline,
        partial(video.cogvideox, use_rotary_positional_embeddings=False),
        CogVideoXDDIMScheduler,
        **SIZE,
        **texts(),
        guidance_scale=3.0,
    ),
    "hunyuan_video": around(
        HunyuanVideoPipeline,
        hunyuan.hunyuan_video,
        **SIZE,
        **texts(pooled_prompt_embeds=8),
        **MASKS,
        true_cfg_scale=3.0,
    ),
    "hunyuan_video_15": hunyuan_video_15,
    "kandinsky_5": kandinsky_5,
    "ltx": around(LTXPipeline, video.ltx, **LARGE, **texts(), **MASKS, guidance_scale=3.0),
    "mochi": around(
        MochiPipeline,
        video.mochi,
        **SIZE | {"num_frames": 7},
        **texts(),
        **{name: mask.bool() for name, mask in MASKS.items()},
    ),
    "skyreels_v2": around(
        SkyReelsV2Pipeline,
        partial(video.skyreels_v2, in_channels=16, out_channels=16),
        lambda: TINY["wan"]().pipe.scheduler,
        **SIZE,
        **texts(),
    ),
    "stable_audio": stable_audio,
    "stable_cascade_prior": stable_cascade_prior,
    "wan_22_two_experts": wan_22,
    "wan_image_to_video": wan_i2v,
    "wan_vace": wan_vace,
}
