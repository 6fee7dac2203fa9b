"""The untrained network of shapes-sd, whose text encoder and autoencoder are those of `reference.models`."""

from __future__ import annotations

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel

from reference.models import LATENT_CHANNELS, LATENT_SIZE, TEXT_WIDTH


def new_unet() -> UNet2DConditionModel:
    """Two levels, 16x16 and 8x8, with attention at 8x8 only, where the layout is decided."""
    return UNet2DConditionModel(
        sample_size=LATENT_SIZE,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(32, 96),
        layers_per_block=1,
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=3,
        norm_num_groups=8,
        use_linear_projection=True,
    )


def new_ddim() -> DDIMScheduler:
    """DDIM on the noise levels of Stable Diffusion 1; users put other solvers in its place."""
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="epsilon",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


class UNetModel(nn.Module):
    """The U-Net and its text encoder, trained as one.

    Attributes:
        unet: predicts the noise in latents (B, 8, 16, 16).
        clip: its token states condition the U-Net.
    """

    def __init__(self, unet: UNet2DConditionModel, clip: CLIPTextModel) -> None:
        super().__init__()
        self.unet, self.clip = unet, clip

    def forward(self, noisy: torch.Tensor, timestep: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The noise in ``noisy`` at ``timestep`` (B,), text read as StableDiffusionPipeline does it."""
        output: torch.Tensor = self.unet(noisy, timestep, self.clip(ids)[0], return_dict=False)[0]
        return output
