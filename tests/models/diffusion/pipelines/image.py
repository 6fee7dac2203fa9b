"""Image pipelines around a transformer: sequential and batched guidance, intervals of it, references, control."""

from __future__ import annotations

from functools import partial
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
from tests.models.diffusion.pipelines.base import MASKS, around, bare, made, texts

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


def hidream() -> Tiny:
    pipe = bare(HiDreamImagePipeline, image.hidream().model)
    pipe.default_sample_size = 8  # its area is that of every picture
    given = {}
    for seed, kind in enumerate(("", "negative_")):
        given[f"{kind}prompt_embeds_t5"] = tensor(1, 6, 16, seed=seed)
        given[f"{kind}prompt_embeds_llama3"] = tensor(4, 1, 6, 12, seed=10 + seed)
        given[f"{kind}pooled_prompt_embeds"] = tensor(1, 16, seed=20 + seed)
    return made(pipe, **SIZE, **given, guidance_scale=3.0)


SD3 = {**SIZE, **texts(pooled_prompt_embeds=16), "guidance_scale": 3.0}
# A third branch, which leaves layers out, in the second to the fourth of six steps.
SKIPPING = {"skip_guidance_layers": [1], "skip_layer_guidance_start": 0.1, "skip_layer_guidance_stop": 0.6}
# Lists of tensors go in and come out; guidance ends half-way, and with it the batch halves.
LISTS = {name: [value[0]] for name, value in texts().items()}
FLOW_SIGMAS = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
WITHOUT_BINS = {"negative_prompt": None, "use_resolution_binning": False}
PIPELINES = {
    "aura_flow": around(AuraFlowPipeline, image.aura_flow, **SIZE, **texts(), **MASKS),
    "bria": bria,
    "chroma": around(
        ChromaPipeline, partial(image_flux.chroma, in_channels=16), **SIZE, **texts(), **MASKS, guidance_scale=3.0
    ),
    "cogview_4": around(CogView4Pipeline, image.cogview_4, **SIZE, **texts()),
    "flux_2": around(
        Flux2Pipeline, partial(image_flux.flux_2, in_channels=16), **SIZE, prompt_embeds=tensor(1, 6, 16, seed=1)
    ),
    "flux_controlnet": flux_controlnet,
    "flux_img2img": flux_img2img,
    "flux_inpaint": flux_inpaint,
    "flux_kontext": flux_kontext,
    "hidream": hidream,
    "lumina_2_guided_half_way": around(
        Lumina2Pipeline,
        image.lumina_2,
        **SIZE,
        **texts(),
        **{name: mask.bool() for name, mask in MASKS.items()},
        cfg_trunc_ratio=0.5,
    ),
    "pixart_sigma": around(
        PixArtSigmaPipeline,
        image.pixart,
        partial(DDIMScheduler, steps_offset=1, clip_sample=False),
        **SIZE,
        **texts(),
        **MASKS,
        **WITHOUT_BINS,
    ),
    "sana": around(
        SanaPipeline,
        image.sana,
        partial(DPMSolverMultistepScheduler, **FLOW_SIGMAS),
        height=256,
        width=256,
        **texts(),
        **MASKS,
        **WITHOUT_BINS,
    ),
    "sd3": around(StableDiffusion3Pipeline, image.sd3, **SD3),
    "sd3_skip_layer_guidance": around(StableDiffusion3Pipeline, image.sd3, **SD3, **SKIPPING),
    "z_image_guided_half_way": around(
        ZImagePipeline, image.z_image, **SIZE, **LISTS, guidance_scale=3.0, cfg_truncation=0.5
    ),
}
