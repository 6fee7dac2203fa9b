"""Video and audio pipelines, and a prior that makes embeddings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import diffusers
import torch
from diffusers.models import StableCascadeUNet
from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors
from diffusers.pipelines.stable_audio import StableAudioProjectionModel
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from tests.helpers.tiny import TINY, Tiny, tensor, varied
from tests.models.diffusion.denoisers import denoiser
from tests.models.diffusion.pipelines.base import MASKS, SIZE, TEXT, around, bare, made, masks, texts

__all__ = ["PIPELINES", "SOUND", "sound_scales", "wan_parts", "wan_transformer"]

SMALL = {"height": 16, "width": 16, "num_frames": 5}
MIDDLE = {"height": 32, "width": 32, "num_frames": 9}
LARGE = {**SIZE, "num_frames": 9}
SOUND = {"audio_in_channels": 128, "audio_out_channels": 128}


def wan_parts(**parts: Any) -> dict[str, Any]:
    """The parts of the tiny Wan, with others."""
    return {**TINY["wan"]().pipe.components, **parts}


def wan_transformer(name: str = "WanTransformer3DModel", seed: int = 0, **more: Any) -> Any:
    sizes = {"in_channels": 16, "out_channels": 16, "rope_max_seq_len": 32}
    return varied(denoiser(name, **sizes | more).model, seed=seed)


def wan_22() -> Tiny:
    """Two experts: the second takes over half-way, with a guidance of its own."""
    experts = {"transformer": wan_transformer(), "transformer_2": wan_transformer(seed=5)}
    pipe = diffusers.WanPipeline(**wan_parts(**experts), boundary_ratio=0.8)
    return made(pipe, **SMALL, **texts(), guidance_scale=3.0, guidance_scale_2=2.0)


def wan_i2v() -> Tiny:
    pipe = diffusers.WanImageToVideoPipeline(**wan_parts(transformer=wan_transformer(in_channels=36)))
    return made(pipe, **SMALL, **texts(), image=tensor(1, 3, 16, 16, seed=7).sigmoid(), guidance_scale=3.0)


def wan_vace() -> Tiny:
    transformer = wan_transformer("WanVACETransformer3DModel", vace_in_channels=96)
    return made(diffusers.WanVACEPipeline(**wan_parts(transformer=transformer)), **SMALL, **texts(), guidance_scale=3.0)


def hunyuan_15_parts() -> dict[str, Any]:
    vae = diffusers.AutoencoderKLHunyuanVideo15(
        latent_channels=4, block_out_channels=(16,) * 5, layers_per_block=1, spatial_compression_ratio=16
    )
    return {"vae": vae, "guider": diffusers.ClassifierFreeGuidance(guidance_scale=3.0)}


def sound_scales(**more: Any) -> dict[str, Any]:
    """What LTX-2 asks its autoencoders: how their latents are scaled."""
    config = SimpleNamespace(scaling_factor=1.0, mel_bins=64, latent_channels=8, **more)
    return {
        name: SimpleNamespace(latents_mean=torch.zeros(size), latents_std=torch.ones(size), config=config)
        for name, size in (("vae", 4), ("audio_vae", 128))
    }


def ltx_2() -> Tiny:
    """Frames and sound; the sound's scheduler is a copy that no pipeline attribute holds."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "num_learnable_registers": None}
    heads = {f"{kind}_connector_{size}": value for kind in ("video", "audio") for size, value in sizes.items()}
    connectors = LTX2TextConnectors(caption_channels=16, text_proj_in_factor=2, rope_double_precision=False, **heads)
    model = denoiser("LTX2VideoTransformer3DModel", **SOUND).model
    pipe = bare(diffusers.LTX2Pipeline, model, connectors=varied(connectors))
    vars(pipe).update(sound_scales())
    return made(pipe, **LARGE, **texts(32), **MASKS, guidance_scale=3.0)


def animate_diff() -> Tiny:
    motion = diffusers.MotionAdapter(
        block_out_channels=(4, 8),
        motion_layers_per_block=1,
        motion_norm_num_groups=2,
        motion_num_attention_heads=2,
        motion_mid_block_layers_per_block=1,
    )
    parts = TINY["stable_diffusion"]().pipe.components
    kept = {name: parts[name] for name in ("vae", "text_encoder", "tokenizer", "unet")}
    scheduler = diffusers.DDIMScheduler(clip_sample=False, steps_offset=1)
    pipe = diffusers.AnimateDiffPipeline(**kept, motion_adapter=varied(motion), scheduler=scheduler)
    return made(pipe, height=8, width=8, num_frames=2, **texts(), guidance_scale=3.0)


def easy_animate() -> Tiny:
    pipe = bare(diffusers.EasyAnimatePipeline, denoiser("EasyAnimateTransformer3DModel").model)
    pipe.vae = SimpleNamespace(config=SimpleNamespace(latent_channels=4))
    return made(pipe, **MIDDLE, **texts(), **MASKS, guidance_scale=3.0)


def stable_audio() -> Tiny:
    vae = diffusers.AutoencoderOobleck(
        encoder_hidden_size=6,
        downsampling_ratios=[1, 2],
        decoder_channels=4,
        decoder_input_channels=4,
        audio_channels=2,
        channel_multiples=[2, 4],
        sampling_rate=4,
    )
    projection = StableAudioProjectionModel(text_encoder_dim=16, conditioning_dim=16, min_value=0, max_value=32)
    model = denoiser("StableAudioDiTModel", global_states_input_dim=32).model
    scheduler = diffusers.EDMDPMSolverMultistepScheduler(prediction_type="v_prediction", sigma_data=1.0)
    pipe = bare(diffusers.StableAudioPipeline, model, scheduler, vae=vae, projection_model=varied(projection))
    more = masks("attention_mask", dtype=torch.long)
    return made(pipe, **texts(), **more, guidance_scale=3.0, audio_end_in_s=2.0)


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
    scheduler = diffusers.DDPMWuerstchenScheduler()
    pipe = diffusers.StableCascadePriorPipeline(**text, prior=varied(prior), scheduler=scheduler)
    given = texts(prompt_embeds_pooled=(1, 16))
    return made(pipe, **given, height=128, width=128, guidance_scale=3.0, output_type="pt")


FLAT = {"negative_prompt": None, "guidance_scale": 3.0}
PIPELINES = {
    "allegro": around(
        diffusers.AllegroPipeline,
        "AllegroTransformer3DModel",
        diffusers.EulerAncestralDiscreteScheduler,
        **MIDDLE,
        **texts(),
        **MASKS,
        **FLAT,
    ),
    "animate_diff": animate_diff,
    "cogvideox": around(
        diffusers.CogVideoXPipeline,
        "CogVideoXTransformer3DModel",
        diffusers.CogVideoXDDIMScheduler,
        sizes={"use_rotary_positional_embeddings": False},
        **MIDDLE,
        **texts(),
        guidance_scale=3.0,
    ),
    "easy_animate": easy_animate,
    "hunyuan_video": around(
        diffusers.HunyuanVideoPipeline,
        "HunyuanVideoTransformer3DModel",
        **MIDDLE,
        **texts(pooled_prompt_embeds=8),
        **MASKS,
        true_cfg_scale=3.0,
    ),
    # Latents, those of a first frame, and a mask.
    "hunyuan_video_15": around(
        diffusers.HunyuanVideo15Pipeline,
        "HunyuanVideo15Transformer3DModel",
        sizes={"in_channels": 9},
        parts=hunyuan_15_parts,
        **MIDDLE,
        **texts(prompt_embeds_2=(3, 12)),
        **masks("prompt_embeds_mask"),
        **masks("prompt_embeds_mask_2", tokens=3),
    ),
    "kandinsky_5": around(
        diffusers.Kandinsky5T2VPipeline,
        "Kandinsky5Transformer3DModel",
        **MIDDLE,
        **texts(name="prompt_embeds_qwen", prompt_embeds_clip=8),
        **{f"{kind}prompt_cu_seqlens": torch.tensor([0, 6], dtype=torch.int32) for kind in ("", "negative_")},
        guidance_scale=3.0,
    ),
    "ltx": around(diffusers.LTXPipeline, "LTXVideoTransformer3DModel", **LARGE, **texts(), **MASKS, guidance_scale=3.0),
    "mochi": around(
        diffusers.MochiPipeline,
        "MochiTransformer3DModel",
        **MIDDLE | {"num_frames": 7},
        **texts(),
        **masks("prompt_attention_mask", dtype=torch.bool),
    ),
    "sana_video": around(
        diffusers.SanaVideoPipeline,
        "SanaVideoTransformer3DModel",
        **SIZE,
        frames=9,
        use_resolution_binning=False,
        **texts(),
        **MASKS,
        **FLAT,
    ),
    "skyreels_v2": around(
        diffusers.SkyReelsV2Pipeline,
        "SkyReelsV2Transformer3DModel",
        lambda: TINY["wan"]().pipe.scheduler,
        sizes={"in_channels": 16, "out_channels": 16},
        **MIDDLE,
        **texts(),
    ),
    "stable_audio": stable_audio,
    "stable_cascade_prior": stable_cascade_prior,
    "wan_22_two_experts": wan_22,
    "wan_image_to_video": wan_i2v,
    "wan_vace": wan_vace,
}
