"""Flux and its kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diffusers import (
    BriaFiboTransformer2DModel,
    BriaTransformer2DModel,
    ChromaTransformer2DModel,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    LongCatImageTransformer2DModel,
    OvisImageTransformer2DModel,
)

from tests.models.diffusion.denoisers.base import Denoiser, ids, tensor, time, varied

SIZES = {"in_channels": 8, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 8, "num_attention_heads": 2}
JOINT = {"joint_attention_dim": 16}
ROPE = {"axes_dims_rope": (2, 2, 4)}


def _made(model: Any, *, axes: int = 3, **more: Callable[[int, int], Any]) -> Denoiser:
    def inputs(step: int, text: int) -> dict[str, Any]:
        return {
            "hidden_states": tensor(1, 9, model.config.in_channels, seed=step),
            "encoder_hidden_states": tensor(1, text, 16, seed=text),
            "timestep": time(step, 1.0),
            "img_ids": ids(9, axes),
            "txt_ids": ids(text, axes),
            "return_dict": False,
        } | {name: value(step, text) for name, value in more.items()}

    return Denoiser(varied(model), inputs)


def flux() -> Denoiser:
    model = FluxTransformer2DModel(**SIZES, **JOINT, **ROPE, pooled_projection_dim=16)
    return _made(model, pooled_projections=lambda _step, text: tensor(1, 16, seed=text))


def flux_2(**sizes: Any) -> Denoiser:
    model = Flux2Transformer2DModel(
        **SIZES | JOINT | sizes, axes_dims_rope=(2, 2, 2, 2), timestep_guidance_channels=16, guidance_embeds=False
    )
    return _made(model, axes=4)


def chroma(**sizes: Any) -> Denoiser:
    model = ChromaTransformer2DModel(
        **SIZES | JOINT | ROPE | sizes, approximator_num_channels=8, approximator_hidden_dim=16, approximator_layers=1
    )
    return _made(model)


def longcat_image() -> Denoiser:
    return _made(LongCatImageTransformer2DModel(**SIZES, **JOINT, **ROPE, pooled_projection_dim=16))


def ovis_image(**sizes: Any) -> Denoiser:
    return _made(OvisImageTransformer2DModel(**SIZES | JOINT | ROPE | {"out_channels": 8} | sizes))


def bria() -> Denoiser:
    return _made(BriaTransformer2DModel(**SIZES, **JOINT, **ROPE))


def bria_fibo() -> Denoiser:
    model = BriaFiboTransformer2DModel(**SIZES, **JOINT, **ROPE, text_encoder_dim=12)
    return _made(
        model, text_encoder_layers=lambda _step, text: [tensor(1, text, 12, seed=10 * text + i) for i in range(4)]
    )


DENOISERS = {
    "BriaFiboTransformer2DModel": bria_fibo,
    "BriaTransformer2DModel": bria,
    "ChromaTransformer2DModel": chroma,
    "Flux2Transformer2DModel": flux_2,
    "FluxTransformer2DModel": flux,
    "LongCatImageTransformer2DModel": longcat_image,
    "OvisImageTransformer2DModel": ovis_image,
}
