"""The untrained network of the reference pipelines with a U-Net, whose text encoder and autoencoder are those of
`reference.models`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel

from reference.models import LATENT_CHANNELS, LATENT_SIZE, TEXT_WIDTH

#: Noise levels of training, as Stable Diffusion has them.
TRAIN_STEPS, BETA_START, BETA_END = 1000, 0.00085, 0.012


@dataclass(frozen=True, kw_only=True)
class UNetKind:
    """One pipeline with a U-Net.

    Attributes:
        name: of the pipeline and of its folder.
        prediction: what the U-Net returns, "epsilon" or "v_prediction".
        channels: of its two levels, at 16x16 and at 8x8.
        heads: of its attention.
        rescale_betas: whether the last noise level holds no signal at all.
    """

    name: str
    prediction: str
    channels: tuple[int, int]
    heads: int
    rescale_betas: bool = False

    def new_unet(self) -> UNet2DConditionModel:
        """With attention at 8x8 only, where the layout is decided."""
        return UNet2DConditionModel(
            sample_size=LATENT_SIZE,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=self.channels,
            layers_per_block=1,
            cross_attention_dim=TEXT_WIDTH,
            attention_head_dim=self.heads,
            norm_num_groups=8,
        )

    def new_scheduler(self) -> DDIMScheduler:
        """DDIM on the noise levels of training; users put others in its place."""
        return DDIMScheduler(
            num_train_timesteps=TRAIN_STEPS,
            beta_start=BETA_START,
            beta_end=BETA_END,
            beta_schedule="scaled_linear",
            prediction_type=self.prediction,
            clip_sample=False,
            set_alpha_to_one=False,
            steps_offset=1,
            rescale_betas_zero_snr=self.rescale_betas,
            timestep_spacing="trailing" if self.rescale_betas else "leading",
        )


SD = UNetKind(name="shapes-sd", prediction="epsilon", channels=(32, 96), heads=3)
V = UNetKind(name="shapes-v", prediction="v_prediction", channels=(32, 64), heads=2, rescale_betas=True)


class UNetModel(nn.Module):
    """The U-Net and its text encoder, trained as one.

    Attributes:
        unet: predicts what its kind says from noisy latents (B, 8, 16, 16).
        clip: its token states condition the U-Net.
    """

    def __init__(self, unet: UNet2DConditionModel, clip: CLIPTextModel) -> None:
        super().__init__()
        self.unet, self.clip = unet, clip

    def forward(self, noisy: torch.Tensor, timestep: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The U-Net's output at ``timestep`` (B,), text read as StableDiffusionPipeline does it."""
        output: torch.Tensor = self.unet(noisy, timestep, self.clip(ids)[0], return_dict=False)[0]
        return output
