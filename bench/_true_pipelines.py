"""Whole pipelines of true width on the fake device: tokens in, pictures out, with text encoders and decoder.

Two blocks of each kind stand for all. Tokenizers are played, for text is no tensor; noise levels are real.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel, UMT5EncoderModel

from bench._fake_device import real

__all__ = ["PIPELINES"]


class Tokens:
    """A tokenizer: as many tokens as are asked for, whatever the text."""

    added_tokens_encoder: ClassVar[dict[str, int]] = {}

    def __init__(self, longest: int) -> None:
        self.model_max_length = longest

    def tokenize(self, text: str) -> list[str]:
        return text.split()

    def __call__(self, texts: list[str], *, max_length: int = 1, **_: Any) -> SimpleNamespace:
        ids = torch.ones(len(texts), max_length, dtype=torch.long)
        return SimpleNamespace(input_ids=ids, attention_mask=ids)


class Scheduler(FlowMatchEulerDiscreteScheduler):
    """Its timesteps are on the device, as a pipeline wants them; its noise levels are real numbers."""

    def set_timesteps(
        self, num_inference_steps: int | None = None, device: Any = None, sigmas: Any = None, mu: float | None = None
    ) -> None:
        with real():
            super().set_timesteps(num_inference_steps, sigmas=sigmas, mu=mu)
        self.timesteps = torch.zeros(len(self.timesteps), device=device)
        self.set_begin_index(0)


def flux(device: torch.device) -> tuple[Any, dict[str, Any]]:
    """Flux.1 dev, and a call for a picture of 1024 × 1024 pixels."""
    with device:
        t5 = T5Config(d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=2, feed_forward_proj="gated-gelu")
        clip = CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=2)
        pipe = FluxPipeline(
            scheduler=_scheduler(),
            vae=AutoencoderKL(
                block_out_channels=(128, 256, 512, 512),
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                latent_channels=16,
                scaling_factor=0.3611,
                shift_factor=0.1159,
            ),
            text_encoder=CLIPTextModel(clip),
            tokenizer=Tokens(77),
            text_encoder_2=T5EncoderModel(t5),
            tokenizer_2=Tokens(512),
            transformer=FluxTransformer2DModel(guidance_embeds=True, num_layers=2, num_single_layers=2),
        )
    return _quiet(pipe), {"height": 1024, "width": 1024}


def wan(device: torch.device) -> tuple[Any, dict[str, Any]]:
    """Wan 2.1 14B, and a call for 81 frames of 832 × 480 pixels with guidance."""
    with device:
        pipe = WanPipeline(
            tokenizer=Tokens(512),
            text_encoder=UMT5EncoderModel(T5Config(d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=2)),
            transformer=WanTransformer3DModel(num_layers=2),
            vae=AutoencoderKLWan(),
            scheduler=_scheduler(),
        )
    return _quiet(pipe), {"height": 480, "width": 832, "num_frames": 81}


def _quiet(pipe: Any) -> Any:
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _scheduler() -> Scheduler:
    with real():
        return Scheduler()


PIPELINES = {"flux.1": flux, "wan2.1-14b": wan}
