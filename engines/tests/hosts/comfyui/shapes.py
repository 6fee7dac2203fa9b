"""Captions, text encoders and decoder of the small Flux of this repository, in the forms that ComfyUI's nodes take."""

from __future__ import annotations

from typing import Any

import torch

from reference.case import IMAGES


class Shapes:
    """The parts around the transformer."""

    def __init__(self) -> None:
        self._pipe = IMAGES.load(None)

    def captions(self, count: int, seed: int) -> list[str]:
        return list(map(IMAGES.caption, IMAGES.held_out(count, seed=seed)))

    def encode(self, text: str) -> list[Any]:
        """A conditioning."""
        with torch.no_grad():
            tokens, pooled, _ = self._pipe.encode_prompt(text, text, max_sequence_length=20)
        return [[tokens, {"pooled_output": pooled}]]

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Pictures of shape (B, height, width, 3) in 0…1, as ComfyUI's VAE gives them."""
        vae = self._pipe.vae
        with torch.no_grad():
            images = vae.decode(latents.clone() / vae.config.scaling_factor + vae.config.shift_factor).sample
        return (images.permute(0, 2, 3, 1) / 2 + 0.5).clamp(0, 1)
