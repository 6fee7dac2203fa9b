"""Pipelines around a UNet: batched guidance with two or three branches, masks, control, two calls a step."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    ControlNetModel,
    EulerDiscreteScheduler,
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionInstructPix2PixPipeline,
    StableDiffusionLatentUpscalePipeline,
    StableDiffusionPAGPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)

from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.denoisers.base import tensor, varied
from tests.models.diffusion.pipelines.base import made, texts

__all__ = ["PIPELINES", "with_scheduler"]

SIZE = {"height": 8, "width": 8, "guidance_scale": 3.0}


def _parts(**unet: Any) -> dict[str, Any]:
    """The parts of the tiny Stable Diffusion, its UNet changed."""
    parts = {**TINY["stable_diffusion"]().pipe.components, "requires_safety_checker": False}
    if unet:
        config = {name: value for name, value in parts["unet"].config.items() if not name.startswith("_")}
        parts["unet"] = varied(UNet2DConditionModel(**config | unet))
    return parts


def with_scheduler(kind: Any, **config: Any) -> Tiny:
    """The tiny Stable Diffusion with another scheduler."""
    tiny = TINY["stable_diffusion"]()
    tiny.pipe.scheduler = kind(**config)
    return tiny


def _image() -> torch.Tensor:
    return tensor(1, 3, 8, 8, seed=7).sigmoid()


def sdxl() -> Tiny:
    unet = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 4,
        "projection_class_embeddings_input_dim": 6 * 4 + 8,
    }
    parts = {name: part for name, part in _parts(**unet).items() if "safety" not in name}
    more = {"text_encoder_2": None, "tokenizer_2": None, "add_watermarker": False}
    pipe = StableDiffusionXLPipeline(**parts | more | {"scheduler": EulerDiscreteScheduler()})
    return made(pipe, **SIZE, **texts(pooled_prompt_embeds=8))


def img2img() -> Tiny:
    pipe = StableDiffusionImg2ImgPipeline(**_parts())
    return made(pipe, **texts(), guidance_scale=3.0, image=tensor(1, 4, 8, 8, seed=7), strength=0.75)


def inpaint() -> Tiny:
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., :4] = 1
    pipe = StableDiffusionInpaintPipeline(**_parts(in_channels=9))
    return made(pipe, **SIZE, **texts(), image=_image(), mask_image=mask, strength=1.0)


def controlnet() -> Tiny:
    parts = _parts()
    network = varied(ControlNetModel.from_unet(parts["unet"], conditioning_embedding_out_channels=(4,)), seed=9)
    pipe = StableDiffusionControlNetPipeline(**parts, controlnet=network)
    return made(pipe, **SIZE, **texts(), image=_image(), control_guidance_end=0.5)


def pix2pix() -> Tiny:
    pipe = StableDiffusionInstructPix2PixPipeline(**_parts(in_channels=8))
    return made(pipe, **texts(), guidance_scale=3.0, image_guidance_scale=1.5, image=_image())


def perturbed_attention() -> Tiny:
    return made(StableDiffusionPAGPipeline(**_parts()), **SIZE, **texts(), pag_scale=2.0)


def latent_upscale() -> Tiny:
    parts = _parts(in_channels=8, out_channels=5, time_cond_proj_dim=128 + 8)
    kept = {name: parts[name] for name in ("vae", "text_encoder", "tokenizer", "unet")}
    scheduler = EulerDiscreteScheduler(prediction_type="sample")
    pipe = StableDiffusionLatentUpscalePipeline(**kept, scheduler=scheduler)
    given = texts(pooled_prompt_embeds=8)
    return made(pipe, **given, guidance_scale=3.0, image=tensor(1, 4, 4, 4, seed=7))


PIPELINES = {
    "sd_controlnet": controlnet,
    "sd_img2img": img2img,
    "sd_inpaint": inpaint,
    "sd_instruct_pix2pix": pix2pix,
    "sd_latent_upscale": latent_upscale,
    "sd_perturbed_attention": perturbed_attention,
    "sdxl": sdxl,
}
