"""Further image pipelines: each brings a denoiser, or a way of calling one, that the others do not have."""

from __future__ import annotations

from functools import partial

import torch
from diffusers import (
    ClassifierFreeGuidance,
    CogVideoXDDIMScheduler,
    CogView3PlusPipeline,
    DDPMScheduler,
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
from tests.models.diffusion.pipelines.base import MASKS, around, bare, made, texts

__all__ = ["PIPELINES"]

SIZE = {"height": 64, "width": 64}


def hunyuan_dit() -> Tiny:
    parts = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    pipe = bare(HunyuanDiTPipeline, hunyuan.hunyuan_dit().model, DDPMScheduler(), **parts)
    more = {}
    for seed, kind in enumerate(("", "negative_")):
        more[f"{kind}prompt_embeds_2"] = tensor(1, 4, 16, seed=20 + seed)
        more[f"{kind}prompt_attention_mask"] = more[f"{kind}prompt_attention_mask_2"] = torch.ones(1, 4)
    size = {**SIZE, "use_resolution_binning": False}
    return made(pipe, **size, **texts(tokens=4), **more, guidance_scale=3.0)


def hunyuan_image() -> Tiny:
    guider = ClassifierFreeGuidance(guidance_scale=3.0)
    pipe = bare(HunyuanImagePipeline, hunyuan.hunyuan_image().model, guider=guider)
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
    pipe = bare(Krea2Pipeline, image_later.krea_2(in_channels=16).model)
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


PIPELINES = {
    "cogview_3": around(
        CogView3PlusPipeline, image.cogview_3, CogVideoXDDIMScheduler, **SIZE, **texts(), guidance_scale=3.0
    ),
    "hunyuan_dit": hunyuan_dit,
    "hunyuan_image": hunyuan_image,
    "kandinsky_decoder": kandinsky_decoder,
    "krea_2": krea_2,
    "latent_consistency": latent_consistency,
    "lumina_next": around(LuminaPipeline, image_later.lumina_next, **SIZE, **texts(), **MASKS, guidance_scale=3.0),
    "ovis_image": around(
        OvisImagePipeline,
        partial(image_flux.ovis_image, in_channels=16, out_channels=16),
        **SIZE,
        **texts(),
        negative_prompt=None,
        guidance_scale=3.0,
    ),
    "prx": around(
        PRXPipeline,
        image.prx,
        **SIZE,
        **texts(),
        **{name: mask.bool() for name, mask in MASKS.items()},
        guidance_scale=3.0,
        use_resolution_binning=False,
    ),
}
