"""The image autoencoder: 64x64 RGB to 16x16x8 latents of unit variance, trained on scenes drawn as it goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL

from omnireuse.reference.models import LATENT_CHANNELS
from omnireuse.reference.scenes import IMAGE_SIZE, draw, sample_scene
from omnireuse.reference.train.loop import (
    Loop,
    averaged,
    learning_rate_factor,
    log,
    save_atomically,
    set_learning_rates,
)

BATCH_SIZE = 16
PEAK_LR = 2e-3
KL_WEIGHT = 1e-4
# Squared error leads: absolute error alone leaves the hues of small objects unlearned for thousands of steps.
MSE_WEIGHT, L1_WEIGHT, EDGE_WEIGHT = 4.0, 0.2, 0.1


def new_autoencoder(*, scaling_factor: float = 1.0, shift_factor: float = 0.0) -> AutoencoderKL:
    """An untrained autoencoder; a latent is (encoded - shift_factor) * scaling_factor, as Flux has it."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=2,
        sample_size=IMAGE_SIZE,
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )


def draw_batch(rng: np.random.Generator, size: int) -> torch.Tensor:
    """``size`` random scenes as images (B, 3, 64, 64) in -1..1."""
    images = np.stack([draw(sample_scene(rng), rng) for _ in range(size)])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous() * 2 - 1


def _edges(image_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return image_BCHW.diff(dim=2), image_BCHW.diff(dim=3)


@torch.no_grad()
def latent_statistics(model: AutoencoderKL, rng: np.random.Generator, num_images: int = 1024) -> tuple[float, float]:
    """Mean and standard deviation over all latents of ``num_images`` scenes."""
    batches = [model.encode(draw_batch(rng, 32)).latent_dist.sample() for _ in range(max(num_images // 32, 1))]
    latents = torch.cat(batches)
    return float(latents.mean()), float(latents.std())


def train_autoencoder(folder: Path, *, num_steps: int, seed: int = 0) -> AutoencoderKL:
    """Train for ``num_steps`` and save the averaged weights in ``folder`` as a diffusers model."""
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 1])
    model = new_autoencoder()
    average = averaged(model, 0.995)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=1e-4)
    loop = Loop("autoencoder", num_steps)
    for step in loop:
        set_learning_rates([optimizer], learning_rate_factor(step, num_steps, warmup=100))
        images = draw_batch(rng, BATCH_SIZE)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = model.encode(images).latent_dist
            decoded = model.decode(posterior.sample()).sample
        decoded = decoded.float()
        mse, l1 = (decoded - images).square().mean(), (decoded - images).abs().mean()
        edge = sum((a - b).abs().mean() for a, b in zip(_edges(decoded), _edges(images), strict=True))
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        kl = 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar).mean()
        (MSE_WEIGHT * mse + L1_WEIGHT * l1 + EDGE_WEIGHT * edge + KL_WEIGHT * kl).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update_parameters(model)
        loop.note(l1=l1, kl=kl, psnr=-10 * torch.log10(mse.detach() / 4))
        if (step + 1) % 500 == 0:
            save_atomically(average.module.state_dict(), folder / "autoencoder.pt")

    trained = average.module.eval()
    mean_value, std_value = latent_statistics(trained, np.random.default_rng([seed, 2]))
    final = new_autoencoder(scaling_factor=1.0 / std_value, shift_factor=mean_value)
    final.load_state_dict(trained.state_dict())
    final.save_pretrained(folder / "vae")
    log.info("autoencoder: latent mean %.4f, standard deviation %.4f", mean_value, std_value)
    return final.eval()
