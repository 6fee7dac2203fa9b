"""Image pipelines around a transformer: sequential and batched guidance, intervals of it, references, control."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AuraFlowPipeline,
    AutoencoderKL,
    BriaPipeline,
    BriaTransformer2DModel,
    ChromaPipeline,
    CogView4Pipeline,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    Flux2Pipeline,
    FluxControlNetModel,
    FluxControlNetPipeline,
    FluxImg2ImgPipeline,
    FluxInpaintPipeline,
    FluxKontextPipeline,
    HiDreamImagePipeline,
    Lumina2Pipeline,
    PixArtSigmaPipeline,
    SanaPipeline,
    StableDiffusion3Pipeline,
    ZImagePipeline,
)

from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.denoisers import image, image_flux
from tests.models.diffusion.denoisers.base import tensor, varied
from tests.models.diffusion.pipelines.base import made, texts

__all__ = ["PIPELINES"]

# Without an autoencoder pipelines take latents to be an eighth of the image.
SIZE = {"height": 64, "width": 64}
NO_TEXT = {"text_encoder": None, "tokenizer": None}


def _flux(kind: Any, **parts: Any) -> Any:
    return kind(**TINY["flux"]().pipe.components | parts)


def _flux_inputs(**more: Any) -> dict[str, Any]:
    given = {"height": 8, "width": 8, "true_cfg_scale": 3.0, **texts(32, pooled_prompt_embeds=32)}
    return given | more


def bria() -> Tiny:
    # It asks for the very type of its scheduler.
    transformer = BriaTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    vae = AutoencoderKL(block_out_channels=(4,), norm_num_groups=1, latent_channels=4, shift_factor=0.0)
    parts = {"transformer": varied(transformer), "vae": vae, "scheduler": FlowMatchEulerDiscreteScheduler()}
    return made(BriaPipeline(**parts, **NO_TEXT), height=32, width=32, guidance_scale=3.0, **texts(32))


def _picture() -> torch.Tensor:
    return tensor(1, 3, 8, 8, seed=7).sigmoid()


def flux_img2img() -> Tiny:
    return made(_flux(FluxImg2ImgPipeline), **_flux_inputs(image=_picture(), strength=0.75))


def flux_inpaint() -> Tiny:
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., :4] = 1
    return made(_flux(FluxInpaintPipeline), **_flux_inputs(image=_picture(), mask_image=mask, strength=0.75))


def flux_kontext() -> Tiny:
    more = {"image": _picture(), "_auto_resize": False, "max_area": 64}
    return made(_flux(FluxKontextPipeline), **_flux_inputs(**more))


def flux_controlnet() -> Tiny:
    network = FluxControlNetModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    pipe = _flux(FluxControlNetPipeline, controlnet=varied(network, seed=9))
    return made(pipe, **_flux_inputs(control_image=_picture(), control_guidance_end=0.5))


def flux_2() -> Tiny:
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = Flux2Pipeline(scheduler=scheduler, vae=None, **NO_TEXT, transformer=image_flux.flux_2(in_channels=16).model)
    return made(pipe, **SIZE, prompt_embeds=tensor(1, 6, 16, seed=1))


def chroma() -> Tiny:
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = ChromaPipeline(scheduler=scheduler, vae=None, **NO_TEXT, transformer=image_flux.chroma(in_channels=16).model)
    masks = {"prompt_attention_mask": torch.ones(1, 6), "negative_prompt_attention_mask": torch.ones(1, 6)}
    return made(pipe, **SIZE, **texts(), **masks, guidance_scale=3.0)


def sd3(**guidance: Any) -> Tiny:
    none = {f"{part}{number}": None for part in NO_TEXT for number in ("", "_2", "_3")}
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = StableDiffusion3Pipeline(transformer=image.sd3().model, scheduler=scheduler, vae=None, **none)
    return made(pipe, **SIZE, **texts(pooled_prompt_embeds=16), guidance_scale=3.0, **guidance)


def sd3_skip_layer_guidance() -> Tiny:
    """A third branch, which leaves layers out, in the second to the fourth of six steps."""
    return sd3(skip_guidance_layers=[1], skip_layer_guidance_start=0.1, skip_layer_guidance_stop=0.6)


def pixart_sigma() -> Tiny:
    scheduler = DDIMScheduler(steps_offset=1, clip_sample=False)
    pipe = PixArtSigmaPipeline(**NO_TEXT, vae=None, transformer=image.pixart().model, scheduler=scheduler)
    masks = {"prompt_attention_mask": torch.ones(1, 6), "negative_prompt_attention_mask": torch.ones(1, 6)}
    return made(pipe, **SIZE, **texts(), **masks, negative_prompt=None, use_resolution_binning=False)


def sana() -> Tiny:
    scheduler = DPMSolverMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction", flow_shift=3.0)
    pipe = SanaPipeline(**NO_TEXT, vae=None, transformer=image.sana().model, scheduler=scheduler)
    masks = {"prompt_attention_mask": torch.ones(1, 6), "negative_prompt_attention_mask": torch.ones(1, 6)}
    size = {"height": 256, "width": 256, "use_resolution_binning": False}
    return made(pipe, **size, **texts(), **masks, negative_prompt=None)


def aura_flow() -> Tiny:
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = AuraFlowPipeline(**NO_TEXT, vae=None, transformer=image.aura_flow().model, scheduler=scheduler)
    masks = {"prompt_attention_mask": torch.ones(1, 6), "negative_prompt_attention_mask": torch.ones(1, 6)}
    return made(pipe, **SIZE, **texts(), **masks)


def hidream() -> Tiny:
    none = {f"{part}{number}": None for part in NO_TEXT for number in ("", "_2", "_3", "_4")}
    model = image.hidream().model
    pipe = HiDreamImagePipeline(scheduler=FlowMatchEulerDiscreteScheduler(), vae=None, **none, transformer=model)
    pipe.default_sample_size = 8  # its area is that of every picture
    given = {}
    for seed, kind in enumerate(("", "negative_")):
        given[f"{kind}prompt_embeds_t5"] = tensor(1, 6, 16, seed=seed)
        given[f"{kind}prompt_embeds_llama3"] = tensor(4, 1, 6, 12, seed=10 + seed)
        given[f"{kind}pooled_prompt_embeds"] = tensor(1, 16, seed=20 + seed)
    return made(pipe, **SIZE, **given, guidance_scale=3.0)


def cogview_4() -> Tiny:
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = CogView4Pipeline(**NO_TEXT, vae=None, transformer=image.cogview_4().model, scheduler=scheduler)
    return made(pipe, **SIZE, **texts())


def lumina_2() -> Tiny:
    """Guidance ends half-way."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = Lumina2Pipeline(**NO_TEXT, vae=None, transformer=image.lumina_2().model, scheduler=scheduler)
    masks = {f"{kind}prompt_attention_mask": torch.ones(1, 6).bool() for kind in ("", "negative_")}
    return made(pipe, **SIZE, **texts(), **masks, cfg_trunc_ratio=0.5)


def z_image() -> Tiny:
    """Lists of tensors go in and come out; guidance ends half-way, and with it the batch halves."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    pipe = ZImagePipeline(**NO_TEXT, vae=None, transformer=image.z_image().model, scheduler=scheduler)
    lists = {name: [value[0]] for name, value in texts().items()}
    return made(pipe, **SIZE, **lists, guidance_scale=3.0, cfg_truncation=0.5)


PIPELINES = {
    "aura_flow": aura_flow,
    "bria": bria,
    "chroma": chroma,
    "cogview_4": cogview_4,
    "flux_2": flux_2,
    "flux_controlnet": flux_controlnet,
    "flux_img2img": flux_img2img,
    "flux_inpaint": flux_inpaint,
    "flux_kontext": flux_kontext,
    "hidream": hidream,
    "lumina_2_guided_half_way": lumina_2,
    "pixart_sigma": pixart_sigma,
    "sana": sana,
    "sd3": sd3,
    "sd3_skip_layer_guidance": sd3_skip_layer_guidance,
    "z_image_guided_half_way": z_image,
}
