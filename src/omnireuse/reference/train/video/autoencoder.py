"""The video autoencoder: 9 frames of 64x64 RGB to 3x8x8x12 latents, trained on clips drawn as it goes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch import nn

from omnireuse.reference.train.loop import (
    Checkpoint,
    Loop,
    averaged,
    learning_rate_factor,
    log,
    set_learning_rates,
)
from omnireuse.reference.video.models import new_autoencoder
from omnireuse.reference.video.scenes import draw, sample_scene

BATCH_SIZE = 8
PEAK_LR = 2e-3
KL_WEIGHT = 1e-4
# Squared error leads, as in the image autoencoder: absolute error alone leaves hues unlearned.
MSE_WEIGHT, L1_WEIGHT = 4.0, 0.2
DECODER_LR, OBJECT_WEIGHT = 1e-3, 3.0


def to_pixels(clips: np.ndarray) -> torch.Tensor:
    """Clips (B, F, H, W, 3) in 0..1 as a tensor (B, 3, F, H, W) in -1..1."""
    pixels = torch.from_numpy(clips).permute(0, 4, 1, 2, 3) * 2 - 1
    return pixels.contiguous(memory_format=torch.channels_last_3d)


def draw_batch(rng: np.random.Generator, size: int) -> torch.Tensor:
    """``size`` random clips (B, 3, 9, 64, 64) in -1..1."""
    return to_pixels(np.stack([draw(sample_scene(rng), rng) for _ in range(size)]))


def channels_last(model: nn.Module) -> None:
    """Lay the 3D convolutions' weights out as oneDNN wants them (1.2 times faster here)."""
    for parameter in model.parameters():
        if parameter.ndim == 5:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last_3d)


@torch.no_grad()
def latent_statistics(
    model: AutoencoderKLWan, rng: np.random.Generator, num_clips: int = 256
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel over the latents of ``num_clips`` clips."""
    batches = [model.encode(draw_batch(rng, 16)).latent_dist.sample() for _ in range(max(num_clips // 16, 1))]
    latents = torch.cat(batches).transpose(0, 1).flatten(1)
    return latents.mean(1).tolist(), latents.std(1).tolist()


def train_autoencoder(
    folder: Path, *, num_steps: int, seed: int = 0, batch_size: int = BATCH_SIZE, checkpoint_every: int = 200
) -> AutoencoderKLWan:
    """Train for ``num_steps`` and save the averaged weights in ``folder`` as a diffusers model."""
    torch.manual_seed(seed)
    model = new_autoencoder()
    channels_last(model)
    average = averaged(model, 0.995)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=1e-4)
    checkpoint = Checkpoint(folder / "autoencoder-resume.pt", model, average, [optimizer])
    start = checkpoint.load()
    torch.manual_seed(seed + start)
    rng = np.random.default_rng([seed, 1, start])
    loop = Loop("autoencoder", num_steps, start=start, log_every=50)
    for step in loop:
        set_learning_rates([optimizer], learning_rate_factor(step, num_steps, warmup=100))
        clips = draw_batch(rng, batch_size)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = model.encode(clips).latent_dist
            decoded = model.decode(posterior.sample()).sample
        decoded = decoded.float()
        mse, l1 = (decoded - clips).square().mean(), (decoded - clips).abs().mean()
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        kl = 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar).mean()
        (MSE_WEIGHT * mse + L1_WEIGHT * l1 + KL_WEIGHT * kl).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update_parameters(model)
        loop.note(l1=l1, kl=kl, norm=norm, psnr=-10 * torch.log10(mse.detach() / 4))
        if (step + 1) % checkpoint_every == 0 or step + 1 == num_steps:
            checkpoint.save(step + 1)

    trained: AutoencoderKLWan = average.module.eval()
    mean_values, std_values = latent_statistics(trained, np.random.default_rng([seed, 2]))
    final = new_autoencoder(mean_values, std_values)
    final.load_state_dict(trained.state_dict())
    final.save_pretrained(folder / "vae")
    log.info("autoencoder: latent standard deviations %s", " ".join(f"{std:.3f}" for std in std_values))
    return final.eval()


def refine_decoder(folder: Path, *, num_steps: int, seed: int = 0, batch_size: int = BATCH_SIZE) -> None:
    """Train the decoder in ``folder/vae`` on, into ``folder/vae-refined``; the encoder stays, as the flow knows it.

    Pixels of the object count more here, for it covers a small part of a frame and its corners a smaller one.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 6])
    model = AutoencoderKLWan.from_pretrained(folder / "vae")
    channels_last(model)
    parameters = [*model.decoder.parameters(), *model.post_quant_conv.parameters()]
    average = averaged(model, 0.99)
    optimizer = torch.optim.AdamW(parameters, lr=DECODER_LR, betas=(0.9, 0.98), weight_decay=1e-4)
    loop = Loop("decoder", num_steps, log_every=50)
    for step in loop:
        set_learning_rates([optimizer], learning_rate_factor(step, num_steps, warmup=20))
        clips = draw_batch(rng, batch_size)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                latents = model.encode(clips).latent_dist.sample()
            decoded = model.decode(latents).sample
        off = decoded.float() - clips
        background = clips.flatten(2).median(-1).values[..., None, None, None]
        weight = 1.0 + OBJECT_WEIGHT * ((clips - background).abs().amax(1, keepdim=True) > 0.3)
        loss = (weight * (MSE_WEIGHT * off.square() + L1_WEIGHT * off.abs())).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.update_parameters(model)
        loop.note(loss=loss, psnr=-10 * torch.log10(off.detach().square().mean() / 4))
    refined: AutoencoderKLWan = average.module
    refined.save_pretrained(folder / "vae-refined")
