"""Pipelines conditioned on images: image prompts, editing, and a prior that makes embeddings of a text."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    FluxPipeline,
    KandinskyV22PriorPipeline,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    StableDiffusionPipeline,
    UnCLIPScheduler,
)
from PIL import Image
from transformers import (
    BatchEncoding,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

from tests.helpers.editing import qwen_edit_pipe
from tests.helpers.tiny import TINY, Tiny
from tests.models.diffusion.denoisers import other
from tests.models.diffusion.denoisers.base import tensor, varied
from tests.models.diffusion.pipelines.base import TEXT, made

__all__ = ["PIPELINES"]

EMBEDS = {"ip_adapter_image_embeds": [tensor(2, 1, 8, seed=11)]}


def _projection(width: int, **names: int) -> dict[str, torch.Tensor]:
    """Weights of an image prompt's projection to four tokens."""
    shapes = {"proj.weight": (4 * width, 8), "proj.bias": (4 * width,), "norm.weight": (width,), "norm.bias": (width,)}
    return {name: tensor(*shape, seed=seed) * 0.15 for seed, (name, shape) in enumerate(shapes.items())}


def ip_adapter() -> Tiny:
    tiny = TINY["stable_diffusion"]()
    unet = tiny.pipe.unet
    cross = [name.removesuffix(".processor") for name in unet.attn_processors if "attn2" in name]
    shapes = [unet.get_submodule(name).to_k.weight.shape for name in cross]
    weights = {
        f"{2 * number + 1}.to_{kind}_ip.weight": tensor(*shape, seed=number) * 0.15
        for number, shape in enumerate(shapes)
        for kind in "kv"
    }
    unet._load_ip_adapter_weights([{"image_proj": _projection(16), "ip_adapter": weights}])
    given = tiny.inputs(guided=True, batch=1)
    return made(StableDiffusionPipeline(**tiny.pipe.components, requires_safety_checker=False), **given, **EMBEDS)


def flux_ip_adapter() -> Tiny:
    tiny = TINY["flux"]()
    weights = {}
    for number in range(2):
        for kind in "kv":
            weights[f"{number}.to_{kind}_ip.weight"] = tensor(32, 32, seed=number) * 0.15
            weights[f"{number}.to_{kind}_ip.bias"] = tensor(32, seed=number)
    tiny.pipe.transformer._load_ip_adapter_weights([{"image_proj": _projection(32), "ip_adapter": weights}])
    embeds = {
        f"{kind}ip_adapter_image_embeds": [tensor(1, 1, 8, seed=seed)] for seed, kind in ((11, ""), (12, "negative_"))
    }
    return made(FluxPipeline(**tiny.pipe.components), **tiny.inputs(guided=True, batch=1), **embeds)


def _edit(kind: Any, *size: Any) -> Tiny:
    pipe, tiny = qwen_edit_pipe(kind, *size)
    return made(pipe, **tiny.inputs(guided=True, batch=1), image=Image.new("RGB", (16, 16), "teal"))


def qwen_image_edit() -> Tiny:
    return _edit(QwenImageEditPipeline, 16, 16, None)


def qwen_image_edit_plus() -> Tiny:
    return _edit(QwenImageEditPlusPipeline, 16, 16)


class Tokens:
    """Five tokens for any text."""

    model_max_length = 5

    def __call__(self, texts: list[str], **_how: Any) -> BatchEncoding:
        ids = torch.tensor([[0, 3, 4 + len(text) % 4, 2, 1] for text in texts])
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def kandinsky_prior() -> Tiny:
    sizes = {"projection_dim": 12, "hidden_size": 12}
    vision = CLIPVisionConfig(
        **sizes, image_size=8, patch_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    pipe = KandinskyV22PriorPipeline(
        prior=other.prior().model,
        image_encoder=CLIPVisionModelWithProjection(vision),
        text_encoder=varied(CLIPTextModelWithProjection(CLIPTextConfig(**TEXT | sizes))),
        tokenizer=Tokens(),
        scheduler=UnCLIPScheduler(prediction_type="sample", clip_sample_range=10.0),
        image_processor=None,
    )
    return made(pipe, prompt="a disc", guidance_scale=3.0, output_type="pt")


PIPELINES = {
    "flux_ip_adapter": flux_ip_adapter,
    "kandinsky_prior": kandinsky_prior,
    "qwen_image_edit": qwen_image_edit,
    "qwen_image_edit_plus": qwen_image_edit_plus,
    "sd_ip_adapter": ip_adapter,
}
