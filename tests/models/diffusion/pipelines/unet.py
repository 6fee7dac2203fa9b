"""Pipelines around a UNet: batched guidance with two or three branches, masks, control, two calls a step."""

from __future__ import annotations

from typing import Any

import diffusers
import torch

from tests.helpers.tiny import TINY, Tiny, stable_diffusion_control, tensor, varied
from tests.models.diffusion.pipelines.base import made, texts

__all__ = ["PIPELINES", "parts", "with_scheduler"]

SIZE = {"height": 8, "width": 8, "guidance_scale": 3.0}
IMAGE = tensor(1, 3, 8, 8, seed=7).sigmoid()
MASK = torch.zeros(1, 1, 8, 8)
MASK[..., :4] = 1


def parts(**unet: Any) -> dict[str, Any]:
    """The parts of the tiny Stable Diffusion, its UNet changed."""
    found = {**TINY["stable_diffusion"]().pipe.components, "requires_safety_checker": False}
    if unet:
        config = {name: value for name, value in found["unet"].config.items() if not name.startswith("_")}
        found["unet"] = varied(diffusers.UNet2DConditionModel(**config | unet))
    return found


def with_scheduler(kind: Any, **config: Any) -> Tiny:
    """The tiny Stable Diffusion with another scheduler."""
    tiny = TINY["stable_diffusion"]()
    tiny.pipe.scheduler = kind(**config)
    return tiny


def sdxl() -> Tiny:
    unet = {"addition_embed_type": "text_time", "addition_time_embed_dim": 4}
    own = parts(**unet, projection_class_embeddings_input_dim=6 * 4 + 8)
    kept = {name: part for name, part in own.items() if "safety" not in name}
    more = {"text_encoder_2": None, "tokenizer_2": None, "add_watermarker": False}
    pipe = diffusers.StableDiffusionXLPipeline(**kept | more | {"scheduler": diffusers.EulerDiscreteScheduler()})
    return made(pipe, **SIZE, **texts(pooled_prompt_embeds=8))


def controlnet() -> Tiny:
    return made(stable_diffusion_control().pipe, **SIZE, **texts(), image=IMAGE, control_guidance_end=0.5)


def latent_upscale() -> Tiny:
    own = parts(in_channels=8, out_channels=5, time_cond_proj_dim=128 + 8)
    kept = {name: own[name] for name in ("vae", "text_encoder", "tokenizer", "unet")}
    scheduler = diffusers.EulerDiscreteScheduler(prediction_type="sample")
    pipe = diffusers.StableDiffusionLatentUpscalePipeline(**kept, scheduler=scheduler)
    return made(pipe, **texts(pooled_prompt_embeds=8), guidance_scale=3.0, image=tensor(1, 4, 4, 4, seed=7))


def plain(kind: Any, *, sizes: dict[str, Any] | None = None, **inputs: Any) -> Any:
    """A factory of a pipeline of the same parts."""
    return lambda: made(kind(**parts(**sizes or {})), **texts(), guidance_scale=3.0, **inputs)


PIXELS = {"height": 8, "width": 8}
PIPELINES = {
    "sd_controlnet": controlnet,
    "sd_img2img": plain(diffusers.StableDiffusionImg2ImgPipeline, image=tensor(1, 4, 8, 8, seed=7), strength=0.75),
    "sd_inpaint": plain(
        diffusers.StableDiffusionInpaintPipeline,
        sizes={"in_channels": 9},
        **PIXELS,
        image=IMAGE,
        mask_image=MASK,
        strength=1.0,
    ),
    "sd_instruct_pix2pix": plain(
        diffusers.StableDiffusionInstructPix2PixPipeline,
        sizes={"in_channels": 8},
        image_guidance_scale=1.5,
        image=IMAGE,
    ),
    "sd_latent_upscale": latent_upscale,
    "sd_perturbed_attention": plain(diffusers.StableDiffusionPAGPipeline, **PIXELS, pag_scale=2.0),
    "sdxl": sdxl,
}
