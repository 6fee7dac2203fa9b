"""Further image pipelines: each brings a denoiser, or a way of calling one, that the others do not have."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    ClassifierFreeGuidance,
    CogVideoXDDIMScheduler,
    CogView3PlusPipeline,
    DDPMScheduler,
    FlowMatchEulerDiscreteScheduler,
    HunyuanDiTPipeline,
    HunyuanImagePipeline,
    KandinskyV22Pipeline,
    Krea2Pipeline,
    LatentConsistencyModelPipeline,
    LCMScheduler,
    LuminaPipeline,
    OvisImagePipeline,
    PRXPipeline,
    UNet2DConditionModel,
    VQModel,
)

from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.denoisers import hunyuan, image, image_flux, image_later
from tests.models.diffusion.denoisers.base import tensor, varied
from tests.models.diffusion.pipelines.base import made, texts

__all__ = ["PIPELINES"]

SIZE = {"height": 64, "width": 64}
NO_TEXT = {"text_encoder": None, "tokenizer": None}
MASKS = {f"{kind}prompt_attention_mask": torch.ones(1, 6) for kind in ("", "negative_")}


def _flow(kind: Any, model: Any, **parts: Any) -> Any:
    """A pipeline by flow matching, around its transformer and little else."""
    return kind(transformer=model, scheduler=FlowMatchEulerDiscreteScheduler(), vae=None, **NO_TEXT, **parts)


def cogview_3() -> Tiny:
    model = image.cogview_3().model
    pipe = CogView3PlusPipeline(**NO_TEXT, vae=None, transformer=model, scheduler=CogVideoXDDIMScheduler())
    return made(pipe, **SIZE, **texts(), guidance_scale=3.0)


def hunyuan_dit() -> Tiny:
    parts = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    pipe = HunyuanDiTPipeline(
        **NO_TEXT, **parts, vae=None, transformer=hunyuan.hunyuan_dit().model, scheduler=DDPMScheduler()
    )
    more = {}
    for seed, kind in enumerate(("", "negative_")):
        more[f"{kind}prompt_embeds_2"] = tensor(1, 4, 16, seed=20 + seed)
        more[f"{kind}prompt_attention_mask"] = more[f"{kind}prompt_attention_mask_2"] = torch.ones(1, 4)
    size = {**SIZE, "use_resolution_binning": False}
    return made(pipe, **size, **texts(tokens=4), **more, guidance_scale=3.0)


def hunyuan_image() -> Tiny:
    model = hunyuan.hunyuan_image().model
    text = {"text_encoder_2": None, "tokenizer_2": None, "guider": ClassifierFreeGuidance(guidance_scale=3.0)}
    pipe = _flow(HunyuanImagePipeline, model, **text)
    more = {}
    for seed, kind in enumerate(("", "negative_")):
        more[f"{kind}prompt_embeds_mask"] = torch.ones(1, 6)
        more[f"{kind}prompt_embeds_2"] = tensor(1, 3, 12, seed=20 + seed)
        more[f"{kind}prompt_embeds_mask_2"] = torch.ones(1, 3)
    return made(pipe, height=128, width=128, **texts(), **more)


def kandinsky_decoder() -> Tiny:
    """The image of an embedding; the denoiser also says the variance."""
    unet = UNet2DConditionModel(
        in_channels=4,
        out_channels=8,
        block_out_channels=(4, 8),
        layers_per_block=1,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        encoder_hid_dim=8,
        encoder_hid_dim_type="image_proj",
        cross_attention_dim=16,
        attention_head_dim=2,
        norm_num_groups=2,
        addition_embed_type="image",
        resnet_time_scale_shift="scale_shift",
        class_embed_type=None,
    )
    movq = VQModel(block_out_channels=(4,), norm_num_groups=1, latent_channels=4)
    pipe = KandinskyV22Pipeline(unet=varied(unet), scheduler=DDPMScheduler(clip_sample=False), movq=movq)
    embeds = {f"{kind}image_embeds": tensor(1, 8, seed=seed) for seed, kind in enumerate(("", "negative_"))}
    return made(pipe, height=8, width=8, **embeds, guidance_scale=3.0)


def krea_2() -> Tiny:
    pipe = _flow(Krea2Pipeline, image_later.krea_2(in_channels=16).model)
    given = {}
    for seed, kind in enumerate(("", "negative_")):
        given[f"{kind}prompt_embeds"] = tensor(1, 6, 2, 16, seed=seed)
        given[f"{kind}prompt_embeds_mask"] = torch.ones(1, 6).bool()
    return made(pipe, **SIZE, **given)


def latent_consistency() -> Tiny:
    parts = TINY["stable_diffusion"]().pipe.components
    config = {name: value for name, value in parts["unet"].config.items() if not name.startswith("_")}
    parts |= {"unet": varied(UNet2DConditionModel(**config | {"time_cond_proj_dim": 8})), "scheduler": LCMScheduler()}
    pipe = LatentConsistencyModelPipeline(**parts, requires_safety_checker=False)
    return made(pipe, height=8, width=8, prompt_embeds=tensor(1, 6, 16, seed=1))


def lumina_next() -> Tiny:
    pipe = _flow(LuminaPipeline, image_later.lumina_next().model)
    return made(pipe, **SIZE, **texts(), **MASKS, guidance_scale=3.0)


def ovis_image() -> Tiny:
    pipe = _flow(OvisImagePipeline, image_flux.ovis_image(in_channels=16, out_channels=16).model)
    return made(pipe, **SIZE, **texts(), negative_prompt=None, guidance_scale=3.0)


def prx() -> Tiny:
    pipe = _flow(PRXPipeline, image.prx().model)
    masks = {name: mask.bool() for name, mask in MASKS.items()}
    return made(pipe, **SIZE, **texts(), **masks, guidance_scale=3.0, use_resolution_binning=False)


PIPELINES = {
    "cogview_3": cogview_3,
    "hunyuan_dit": hunyuan_dit,
    "hunyuan_image": hunyuan_image,
    "kandinsky_decoder": kandinsky_decoder,
    "krea_2": krea_2,
    "latent_consistency": latent_consistency,
    "lumina_next": lumina_next,
    "ovis_image": ovis_image,
    "prx": prx,
}
