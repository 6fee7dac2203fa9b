"""Image pipelines around a transformer: sequential and batched guidance, intervals of it, references, image prompts."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import torch
from PIL import Image
from transformers import (
    BatchEncoding,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

from tests.helpers.editing import qwen_edit_pipe
from tests.helpers.tiny import TINY, Tiny, flux_control, tensor, varied
from tests.models.diffusion.denoisers import DENOISERS
from tests.models.diffusion.pipelines import unet
from tests.models.diffusion.pipelines.base import MASKS, SIZE, TEXT, around, bare, made, masks, texts

__all__ = ["PIPELINES"]

PICTURE = tensor(1, 3, 8, 8, seed=7).sigmoid()


def bria() -> Tiny:
    # It asks for the very type of its scheduler.
    transformer = diffusers.BriaTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    parts = {"vae": TINY["flux"]().pipe.vae, "scheduler": diffusers.FlowMatchEulerDiscreteScheduler()}
    pipe = diffusers.BriaPipeline(transformer=varied(transformer), **parts, text_encoder=None, tokenizer=None)
    return made(pipe, height=32, width=32, guidance_scale=3.0, **texts(32))


def of_flux(kind: Any, **more: Any) -> Any:
    """A factory of a pipeline of the tiny Flux's parts."""
    given = {"height": 8, "width": 8, "true_cfg_scale": 3.0, **texts(32, pooled_prompt_embeds=32)}
    return lambda: made(kind(**TINY["flux"]().pipe.components), **given | more)


def flux_controlnet() -> Tiny:
    given = {"height": 8, "width": 8, "true_cfg_scale": 3.0, **texts(32, pooled_prompt_embeds=32)}
    return made(flux_control().pipe, **given, control_image=PICTURE, control_guidance_end=0.5)


def hidream() -> Tiny:
    pipe = bare(diffusers.HiDreamImagePipeline, DENOISERS["HiDreamImageTransformer2DModel"]().model)
    pipe.default_sample_size = 8  # its area is that of every picture
    given = texts(name="prompt_embeds_t5", pooled_prompt_embeds=16)
    for seed, kind in enumerate(("", "negative_")):
        given[f"{kind}prompt_embeds_llama3"] = tensor(4, 1, 6, 12, seed=10 + seed)
    return made(pipe, **SIZE, **given, guidance_scale=3.0)


def kandinsky_decoder() -> Tiny:
    """The image of an embedding; the denoiser also says the variance."""
    denoiser = diffusers.UNet2DConditionModel(
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
    movq = diffusers.VQModel(block_out_channels=(4,), norm_num_groups=1, latent_channels=4)
    scheduler = diffusers.DDPMScheduler(clip_sample=False)
    pipe = diffusers.KandinskyV22Pipeline(unet=varied(denoiser), scheduler=scheduler, movq=movq)
    embeds = {f"{kind}image_embeds": tensor(1, 8, seed=seed) for seed, kind in enumerate(("", "negative_"))}
    return made(pipe, height=8, width=8, **embeds, guidance_scale=3.0)


def latent_consistency() -> Tiny:
    parts = unet.parts(time_cond_proj_dim=8) | {"scheduler": diffusers.LCMScheduler()}
    pipe = diffusers.LatentConsistencyModelPipeline(**parts)
    return made(pipe, height=8, width=8, prompt_embeds=tensor(1, 6, 16, seed=1))


# -- conditioned on images --------------------------------------------------------------------------------------------


def _projection(width: int) -> dict[str, torch.Tensor]:
    """Weights of an image prompt's projection to four tokens."""
    shapes = {"proj.weight": (4 * width, 8), "proj.bias": (4 * width,), "norm.weight": (width,), "norm.bias": (width,)}
    return {name: tensor(*shape, seed=seed) * 0.15 for seed, (name, shape) in enumerate(shapes.items())}


def ip_adapter() -> Tiny:
    tiny = TINY["stable_diffusion"]()
    model = tiny.pipe.unet
    cross = [name.removesuffix(".processor") for name in model.attn_processors if "attn2" in name]
    shapes = [model.get_submodule(name).to_k.weight.shape for name in cross]
    weights = {
        f"{2 * number + 1}.to_{kind}_ip.weight": tensor(*shape, seed=number) * 0.15
        for number, shape in enumerate(shapes)
        for kind in "kv"
    }
    model._load_ip_adapter_weights([{"image_proj": _projection(16), "ip_adapter": weights}])
    embeds = {"ip_adapter_image_embeds": [tensor(2, 1, 8, seed=11)]}
    pipe = diffusers.StableDiffusionPipeline(**tiny.pipe.components, requires_safety_checker=False)
    return made(pipe, **tiny.inputs(guided=True, batch=1), **embeds)


def flux_ip_adapter() -> Tiny:
    tiny = TINY["flux"]()
    weights = {
        f"{number}.to_{kind}_ip.{part}": tensor(*shape, seed=number) * (0.15 if part == "weight" else 1)
        for number in range(2)
        for kind in "kv"
        for part, shape in (("weight", (32, 32)), ("bias", (32,)))
    }
    tiny.pipe.transformer._load_ip_adapter_weights([{"image_proj": _projection(32), "ip_adapter": weights}])
    embeds = {
        f"{kind}ip_adapter_image_embeds": [tensor(1, 1, 8, seed=seed)] for seed, kind in ((11, ""), (12, "negative_"))
    }
    return made(tiny.pipe, **tiny.inputs(guided=True, batch=1), **embeds)


def edit(kind: Any, *size: Any) -> Tiny:
    pipe, tiny = qwen_edit_pipe(kind, *size)
    return made(pipe, **tiny.inputs(guided=True, batch=1), image=Image.new("RGB", (16, 16), "teal"))


class Tokens:
    """Five tokens for any text."""

    model_max_length = 5

    def __call__(self, texts: list[str], **_how: Any) -> BatchEncoding:
        ids = torch.tensor([[0, 3, 4 + len(text) % 4, 2, 1] for text in texts])
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def kandinsky_prior() -> Tiny:
    sizes = {**TEXT, "projection_dim": 12, "hidden_size": 12}
    pipe = diffusers.KandinskyV22PriorPipeline(
        prior=DENOISERS["PriorTransformer"]().model,
        image_encoder=CLIPVisionModelWithProjection(CLIPVisionConfig(**sizes, image_size=8, patch_size=4)),
        text_encoder=varied(CLIPTextModelWithProjection(CLIPTextConfig(**sizes))),
        tokenizer=Tokens(),
        scheduler=diffusers.UnCLIPScheduler(prediction_type="sample", clip_sample_range=10.0),
        image_processor=None,
    )
    return made(pipe, prompt="a disc", guidance_scale=3.0, output_type="pt")


GUIDED = {**SIZE, "guidance_scale": 3.0}
BOOLEAN = masks("prompt_attention_mask", dtype=torch.bool)
SD3 = {**GUIDED, **texts(pooled_prompt_embeds=16)}
# A third branch, which leaves layers out, in the second to the fourth of six steps.
SKIPPING = {"skip_guidance_layers": [1], "skip_layer_guidance_start": 0.1, "skip_layer_guidance_stop": 0.6}
# Lists of tensors go in and come out; guidance ends half-way, and with it the batch halves.
LISTS = {name: [value[0]] for name, value in texts().items()}
FLOW_SIGMAS = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
WITHOUT_BINS = {"negative_prompt": None, "use_resolution_binning": False}
UNCHECKED = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
PIPELINES = {
    "aura_flow": around(diffusers.AuraFlowPipeline, "AuraFlowTransformer2DModel", **SIZE, **texts(), **MASKS),
    "bria": bria,
    "chroma": around(
        diffusers.ChromaPipeline,
        "ChromaTransformer2DModel",
        sizes={"in_channels": 16},
        **GUIDED,
        **texts(),
        **MASKS,
    ),
    "cogview_3": around(
        diffusers.CogView3PlusPipeline,
        "CogView3PlusTransformer2DModel",
        diffusers.CogVideoXDDIMScheduler,
        **GUIDED,
        **texts(),
    ),
    "cogview_4": around(diffusers.CogView4Pipeline, "CogView4Transformer2DModel", **SIZE, **texts()),
    "flux_2": around(
        diffusers.Flux2Pipeline,
        "Flux2Transformer2DModel",
        sizes={"in_channels": 16},
        **SIZE,
        prompt_embeds=tensor(1, 6, 16, seed=1),
    ),
    "flux_controlnet": flux_controlnet,
    "flux_img2img": of_flux(diffusers.FluxImg2ImgPipeline, image=PICTURE, strength=0.75),
    "flux_inpaint": of_flux(diffusers.FluxInpaintPipeline, image=PICTURE, mask_image=unet.MASK, strength=0.75),
    "flux_ip_adapter": flux_ip_adapter,
    "flux_kontext": of_flux(diffusers.FluxKontextPipeline, image=PICTURE, _auto_resize=False, max_area=64),
    "hidream": hidream,
    "hunyuan_dit": around(
        diffusers.HunyuanDiTPipeline,
        "HunyuanDiT2DModel",
        diffusers.DDPMScheduler,
        parts=lambda: UNCHECKED,
        **GUIDED,
        **texts(tokens=4, prompt_embeds_2=(4, 16)),
        **masks("prompt_attention_mask", "prompt_attention_mask_2", tokens=4),
        use_resolution_binning=False,
    ),
    "hunyuan_image": around(
        diffusers.HunyuanImagePipeline,
        "HunyuanImageTransformer2DModel",
        parts=lambda: {"guider": diffusers.ClassifierFreeGuidance(guidance_scale=3.0)},
        height=128,
        width=128,
        **texts(prompt_embeds_2=(3, 12)),
        **masks("prompt_embeds_mask"),
        **masks("prompt_embeds_mask_2", tokens=3),
    ),
    "kandinsky_decoder": kandinsky_decoder,
    "kandinsky_prior": kandinsky_prior,
    "krea_2": around(
        diffusers.Krea2Pipeline,
        "Krea2Transformer2DModel",
        sizes={"in_channels": 16},
        **SIZE,
        **texts((2, 16)),
        **masks("prompt_embeds_mask", dtype=torch.bool),
    ),
    "latent_consistency": latent_consistency,
    "lumina_2_guided_half_way": around(
        diffusers.Lumina2Pipeline, "Lumina2Transformer2DModel", **SIZE, **texts(), **BOOLEAN, cfg_trunc_ratio=0.5
    ),
    "lumina_next": around(diffusers.LuminaPipeline, "LuminaNextDiT2DModel", **GUIDED, **texts(), **MASKS),
    "ovis_image": around(
        diffusers.OvisImagePipeline,
        "OvisImageTransformer2DModel",
        sizes={"in_channels": 16, "out_channels": 16},
        **GUIDED,
        **texts(),
        negative_prompt=None,
    ),
    "pixart_sigma": around(
        diffusers.PixArtSigmaPipeline,
        "PixArtTransformer2DModel",
        partial(diffusers.DDIMScheduler, steps_offset=1, clip_sample=False),
        **SIZE,
        **texts(),
        **MASKS,
        **WITHOUT_BINS,
    ),
    "prx": around(
        diffusers.PRXPipeline,
        "PRXTransformer2DModel",
        **GUIDED,
        **texts(),
        **BOOLEAN,
        use_resolution_binning=False,
    ),
    "qwen_image_edit": partial(edit, diffusers.QwenImageEditPipeline, 16, 16, None),
    "qwen_image_edit_plus": partial(edit, diffusers.QwenImageEditPlusPipeline, 16, 16),
    "sana": around(
        diffusers.SanaPipeline,
        "SanaTransformer2DModel",
        partial(diffusers.DPMSolverMultistepScheduler, **FLOW_SIGMAS),
        height=256,
        width=256,
        **texts(),
        **MASKS,
        **WITHOUT_BINS,
    ),
    "sd3": around(diffusers.StableDiffusion3Pipeline, "SD3Transformer2DModel", **SD3),
    "sd3_skip_layer_guidance": around(diffusers.StableDiffusion3Pipeline, "SD3Transformer2DModel", **SD3, **SKIPPING),
    "sd_ip_adapter": ip_adapter,
    "z_image_guided_half_way": around(
        diffusers.ZImagePipeline, "ZImageTransformer2DModel", **GUIDED, **LISTS, cfg_truncation=0.5
    ),
}
