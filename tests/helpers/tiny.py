"""Tiny pipelines with random weights, made without any download. They embed nothing: tests hand over embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
    ControlNetModel,
    DDIMScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxControlNetModel,
    FluxControlNetPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    StableDiffusionControlNetPipeline,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)


@dataclass(frozen=True)
class Tiny:
    """A pipeline and how to run it: `run(steps=…, seed=…, **call)` returns the final latents.

    `inputs` may overrule how results are asked for.
    """

    pipe: Any
    inputs: Callable[..., dict[str, Any]]

    def run(self, *, steps: int = 6, seed: int = 0, **call: Any) -> torch.Tensor:
        arguments = self.inputs(guided=call.pop("guided", True), batch=call.pop("batch", 1))
        generator = torch.Generator().manual_seed(seed)
        asked = {"num_inference_steps": steps, "generator": generator, "output_type": "latent"}
        result = self.pipe(**asked | arguments | call)
        latents = result[0] if isinstance(result, tuple) else next(iter(result.values()))
        assert isinstance(latents, torch.Tensor)
        return latents


def varied(module: torch.nn.Module, seed: int = 0) -> Any:
    # Zero-initialised output layers would make every step alike.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return module.eval()


def tensor(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FLUX: dict[str, Any] = {
    "in_channels": 16,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 32,
    "axes_dims_rope": (4, 4, 8),
}


def flux(*, layers: int = 2, **scheduler: Any) -> Tiny:
    """Flux with as many double as single blocks."""
    transformer = varied(FluxTransformer2DModel(num_layers=layers, num_single_layers=layers, **FLUX))
    vae = AutoencoderKL(block_out_channels=(4,), norm_num_groups=1, latent_channels=4, shift_factor=0.0)
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**scheduler),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=transformer,
    )

    def inputs(*, guided: bool, batch: int) -> dict[str, Any]:
        given: dict[str, Any] = {
            "prompt_embeds": tensor(batch, 6, 32, seed=1),
            "pooled_prompt_embeds": tensor(batch, 32, seed=2),
            "height": 8,
            "width": 8,
        }
        if guided:
            given |= {
                "negative_prompt_embeds": tensor(batch, 6, 32, seed=3),
                "negative_pooled_prompt_embeds": tensor(batch, 32, seed=4),
                "true_cfg_scale": 3.0,
            }
        return given

    return _quiet(pipe, inputs)


def small_flux(**scheduler: Any) -> Tiny:
    """For what depends on no number of blocks, in a good half of the time."""
    return flux(layers=1, **scheduler)


def wan() -> Tiny:
    transformer = varied(
        WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=16,
            ffn_dim=32,
            num_layers=3,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=32,
        )
    )
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    pipe = WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=vae,
        scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        transformer=transformer,
    )

    def inputs(*, guided: bool, batch: int) -> dict[str, Any]:
        return {
            "prompt_embeds": tensor(batch, 6, 32, seed=1),
            "negative_prompt_embeds": tensor(batch, 6, 32, seed=3),
            "guidance_scale": 3.0 if guided else 1.0,
            "height": 16,
            "width": 16,
            "num_frames": 5,
        }

    return _quiet(pipe, inputs)


def stable_diffusion() -> Tiny:
    unet = varied(
        UNet2DConditionModel(
            block_out_channels=(4, 8),
            layers_per_block=1,
            sample_size=8,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=16,
            norm_num_groups=2,
            attention_head_dim=2,
        )
    )
    pipe = StableDiffusionPipeline(
        vae=AutoencoderKL(block_out_channels=(4,), norm_num_groups=1, latent_channels=4),
        text_encoder=None,
        tokenizer=None,
        unet=unet,
        scheduler=DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )

    def inputs(*, guided: bool, batch: int) -> dict[str, Any]:
        return {
            "prompt_embeds": tensor(batch, 6, 16, seed=1),
            "negative_prompt_embeds": tensor(batch, 6, 16, seed=3),
            "guidance_scale": 3.0 if guided else 1.0,
            "height": 8,
            "width": 8,
        }

    return _quiet(pipe, inputs)


def qwen_image() -> Tiny:
    transformer = varied(
        QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=3,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=16,
            axes_dims_rope=(8, 4, 4),
        )
    )
    vae = AutoencoderKLQwenImage(
        base_dim=4, z_dim=4, dim_mult=[1, 2, 4], num_res_blocks=1, temperal_downsample=[False, True]
    )
    pipe = QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        transformer=transformer,
    )

    def inputs(*, guided: bool, batch: int) -> dict[str, Any]:
        # The two branches have prompts of different lengths.
        given: dict[str, Any] = {
            "prompt_embeds": tensor(batch, 6, 16, seed=1),
            "prompt_embeds_mask": torch.ones(batch, 6, dtype=torch.long),
            "height": 16,
            "width": 16,
        }
        if guided:
            given |= {
                "negative_prompt_embeds": tensor(batch, 4, 16, seed=3),
                "negative_prompt_embeds_mask": torch.ones(batch, 4, dtype=torch.long),
                "true_cfg_scale": 3.0,
            }
        return given

    return _quiet(pipe, inputs)


FLUX_CALL = {
    "encoder_hidden_states": torch.ones(1, 6, 32),
    "pooled_projections": torch.ones(1, 32),
    "img_ids": torch.zeros(16, 3),
    "txt_ids": torch.zeros(6, 3),
    "return_dict": False,
}
"""What a loop of one's own gives to the transformer of `flux` beside latents (1, 16, 16) and timestep."""


def _quiet(pipe: Any, inputs: Callable[..., dict[str, Any]]) -> Tiny:
    pipe.set_progress_bar_config(disable=True)
    return Tiny(pipe, inputs)


def flux_control() -> Tiny:
    tiny = flux()
    control = FluxControlNetModel(num_layers=1, num_single_layers=1, **FLUX)
    parts = {name: getattr(tiny.pipe, name) for name in ("scheduler", "vae", "transformer")}
    absent = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    pipe = FluxControlNetPipeline(**parts, **absent, controlnet=varied(control, 7))
    return _controlled(pipe, tiny, "control_image")


def stable_diffusion_control() -> Tiny:
    tiny = stable_diffusion()
    control = ControlNetModel.from_unet(tiny.pipe.unet, conditioning_embedding_out_channels=(4,))
    parts = {**tiny.pipe.components, "controlnet": varied(control, 7), "requires_safety_checker": False}
    return _controlled(StableDiffusionControlNetPipeline(**parts), tiny, "image")


def _controlled(pipe: Any, tiny: Tiny, name: str) -> Tiny:
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return _quiet(pipe, lambda **given: tiny.inputs(**given) | {name: image})


TINY: dict[str, Callable[[], Tiny]] = {
    "flux": flux,
    "qwen_image": qwen_image,
    "stable_diffusion": stable_diffusion,
    "wan": wan,
}
