"""Tiny editing pipelines with random weights, whose denoisers get the tokens of one or two references."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import diffusers
import torch
from PIL import Image

from tests.helpers.tiny import TINY, Tiny, tensor, varied
from tests.models.diffusion.denoisers import denoiser, model_of

__all__ = ["EDITING", "picture", "qwen_edit_pipe"]


def picture(seed: int = 0, width: int = 16, height: int = 16) -> Image.Image:
    """A picture of noise."""
    pixels = torch.randint(0, 255, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def _made(pipe: Any, inputs: Callable[[int], dict[str, Any]]) -> Tiny:
    pipe.set_progress_bar_config(disable=True)
    varied(pipe.vae)
    return Tiny(pipe, lambda *, batch, **_kinds: inputs(batch))


def _texts(batch: int, width: int) -> dict[str, Any]:
    return {
        "prompt_embeds": tensor(batch, 6, width, seed=1),
        "negative_prompt_embeds": tensor(batch, 6, width, seed=3),
    }


def _kontext(kind: Any, **more: Any) -> Tiny:
    pipe = kind(**TINY["flux"]().pipe.components)

    def inputs(batch: int) -> dict[str, Any]:
        pooled = {
            "pooled_prompt_embeds": tensor(batch, 32, seed=2),
            "negative_pooled_prompt_embeds": tensor(batch, 32, seed=4),
        }
        given = {"height": 8, "width": 8, "true_cfg_scale": 3.0, "image": picture(), "max_area": 64}
        return {**_texts(batch, 32), **pooled, **given, "_auto_resize": False, **more}

    return _made(pipe, inputs)


def kontext() -> Tiny:
    return _kontext(diffusers.FluxKontextPipeline)


def kontext_inpaint() -> Tiny:
    mask = Image.new("L", (16, 16), 255)
    return _kontext(diffusers.FluxKontextInpaintPipeline, mask_image=mask, image_reference=picture(3), strength=1.0)


def qwen_edit_pipe(kind: Any, *size: Any) -> tuple[Any, Tiny]:
    """An editing pipeline that brings its pictures to `size`, instead of a million pixels; and what it is made of."""

    class Small(kind):  # type: ignore[misc]  # a base that is handed over
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with patch.object(sys.modules[kind.__module__], "calculate_dimensions", lambda _area, _ratio: size):
                return super().__call__(*args, **kwargs)

    tiny = TINY["qwen_image"]()
    config = {name: value for name, value in tiny.pipe.vae.config.items() if not name.startswith("_")}
    vae = diffusers.AutoencoderKLQwenImage(**config | {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4})
    return Small(**tiny.pipe.components | {"vae": vae.eval()}, processor=None), tiny


def _qwen(kind: Any, *size: Any, **more: Any) -> Tiny:
    pipe, tiny = qwen_edit_pipe(kind, *size)
    return _made(pipe, lambda batch: {**tiny.inputs(guided=True, batch=batch), "image": picture(), **more})


def qwen_edit() -> Tiny:
    return _qwen(diffusers.QwenImageEditPipeline, 16, 16, None)


def qwen_edit_inpaint() -> Tiny:
    return _qwen(
        diffusers.QwenImageEditInpaintPipeline, 16, 16, None, mask_image=Image.new("L", (16, 16), 255), strength=1.0
    )


def qwen_edit_plus() -> Tiny:
    """Two references, larger than the target: the positions of the text follow the largest picture."""
    return _qwen(diffusers.QwenImageEditPlusPipeline, 32, 16, image=[picture(1), picture(2)])


def _flux_2(kind: Any, **more: Any) -> Tiny:
    vae = diffusers.AutoencoderKLFlux2(
        block_out_channels=(4,),
        down_block_types=("DownEncoderBlock2D",),
        up_block_types=("UpDecoderBlock2D",),
        layers_per_block=1,
        norm_num_groups=1,
        latent_channels=4,
    )
    pipe = kind(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        transformer=denoiser("Flux2Transformer2DModel", in_channels=16).model,
    )
    given = {"height": 8, "width": 8, "image": [picture(1, 64, 64), picture(2, 64, 96)], **more}
    pipe.image_processor.check_image_input = lambda *_args, **_kwargs: None
    return _made(pipe, lambda batch: {"prompt_embeds": tensor(batch, 6, 16, seed=1), **given})


def flux_2() -> Tiny:
    return _flux_2(diffusers.Flux2Pipeline)


def flux_2_klein() -> Tiny:
    return _flux_2(diffusers.Flux2KleinPipeline, negative_prompt_embeds=tensor(1, 5, 16, seed=3), guidance_scale=3.0)


class _Processor:
    image_processor = None


def longcat() -> Tiny:
    class Small(diffusers.LongCatImageEditPipeline):  # type: ignore[misc]  # without annotations
        def encode_prompt(self, prompt: Any, image: Any, prompt_embeds: Any, num_images_per_prompt: int) -> Any:
            count = 6 if prompt_embeds is None else prompt_embeds.shape[1]
            embeds = tensor(1, count, 16, seed=3) if prompt_embeds is None else prompt_embeds
            ids = torch.zeros(count, 3)
            ids[:, 1] = ids[:, 2] = torch.arange(count)
            return embeds, ids

        def check_inputs(self, *args: Any, **kwargs: Any) -> None:
            pass

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            module = sys.modules[diffusers.LongCatImageEditPipeline.__module__]
            with patch.object(module, "calculate_dimensions", lambda _area, _ratio: (8, 8)):
                return super().__call__(*args, **kwargs)

    vae = diffusers.AutoencoderKL(block_out_channels=(4,), norm_num_groups=1, latent_channels=16, shift_factor=0.0)
    pipe = Small(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        text_processor=_Processor(),
        transformer=model_of("LongCatImageTransformer2DModel", in_channels=64),
    )
    return _made(pipe, lambda batch: {**_texts(batch, 16), "image": picture(), "guidance_scale": 3.0})


_PIPELINES = {
    kontext: "FluxKontextPipeline",
    kontext_inpaint: "FluxKontextInpaintPipeline",
    qwen_edit: "QwenImageEditPipeline",
    qwen_edit_inpaint: "QwenImageEditInpaintPipeline",
    qwen_edit_plus: "QwenImageEditPlusPipeline",
    flux_2: "Flux2Pipeline",
    flux_2_klein: "Flux2KleinPipeline",
    longcat: "LongCatImageEditPipeline",
}
EDITING = {make.__name__: make for make, pipeline in _PIPELINES.items() if hasattr(diffusers, pipeline)}
"""Factories by name, of pipelines that this release of diffusers has."""
