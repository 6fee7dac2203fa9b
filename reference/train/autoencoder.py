"""The autoencoders of both pipelines, trained on scenes drawn as it goes; latents get unit variance at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import ModelMixin
from torch import nn

from reference.drawing import Array
from reference.train.loop import (
    Checkpoint,
    Loop,
    averaged,
    descend,
    learning_rate_factor,
    log,
    set_learning_rates,
)

PEAK_LR = 2e-3
KL_WEIGHT = 1e-4
# Squared error leads: absolute error alone leaves the hues of small objects unlearned for thousands of steps.
MSE_WEIGHT, L1_WEIGHT = 4.0, 0.2
MEASURED_TOGETHER = 32


@dataclass(frozen=True, kw_only=True)
class AutoencoderTask:
    """What an autoencoder is and learns from.

    Attributes:
        new: (what `normalisation` returned, or nothing) -> the untrained autoencoder.
        draw: (rng) -> a random image (H, W, 3) or clip (F, H, W, 3) in 0..1.
        normalisation: (latents) -> arguments of ``new`` with which they have zero mean and unit variance.
        edge_weight: of the error of neighbouring pixels' differences.
    """

    new: Callable[..., ModelMixin]
    draw: Callable[[np.random.Generator], Array]
    normalisation: Callable[[torch.Tensor], dict[str, Any]]
    edge_weight: float = 0.0

    def batch(self, rng: np.random.Generator, size: int) -> torch.Tensor:
        """``size`` random images or clips as `to_pixels` has them."""
        return to_pixels(np.stack([self.draw(rng) for _ in range(size)]))


def to_pixels(made: Array) -> torch.Tensor:
    """Images (B, H, W, 3) or clips (B, F, H, W, 3) in 0..1 as a tensor in -1..1, channels second."""
    pixels = torch.from_numpy(made).movedim(-1, 1) * 2 - 1
    return pixels.contiguous(memory_format=_layout(pixels))


def channels_last(model: nn.Module) -> None:
    """Lay the 3D convolutions' weights out as oneDNN wants them (1.2 times faster here)."""
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous(memory_format=_layout(parameter))


def _layout(tensor: torch.Tensor) -> torch.memory_format:
    return torch.channels_last_3d if tensor.ndim == 5 else torch.contiguous_format


def _edges(pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return pixels.diff(dim=-2), pixels.diff(dim=-1)


@torch.no_grad()
def _normalised(task: AutoencoderTask, trained: Any, rng: np.random.Generator, num_measured: int) -> Any:
    """``trained`` with the normalisation of its own latents."""
    sizes = [MEASURED_TOGETHER] * (num_measured // MEASURED_TOGETHER)
    latents = torch.cat([trained.encode(task.batch(rng, size)).latent_dist.sample() for size in sizes])
    normalisation = task.normalisation(latents)
    log.info("autoencoder: %s", normalisation)
    final = task.new(**normalisation)
    final.load_state_dict(trained.state_dict())
    return final


def train_autoencoder(
    task: AutoencoderTask,
    folder: Path,
    *,
    num_steps: int,
    batch_size: int,
    num_measured: int,
    seed: int = 0,
    checkpoint_every: int = 200,
) -> None:
    """Train for ``num_steps`` and save the averaged weights in ``folder/vae`` as a diffusers model.

    A run that was stopped goes on from its last checkpoint.

    Args:
        task: what is trained.
        folder: where model and checkpoints go.
        num_steps: optimizer steps; the learning rate reaches zero at the last.
        batch_size: images or clips a step.
        num_measured: images or clips by whose latents the normalisation is decided, a multiple of 32.
        seed: of everything random.
        checkpoint_every: steps between checkpoints.
    """
    torch.manual_seed(seed)
    model: Any = task.new()
    channels_last(model)
    average = averaged(model, 0.995)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=1e-4)]
    checkpoint = Checkpoint(folder / "autoencoder-resume.pt", model, average, optimizers)
    start = checkpoint.load()
    torch.manual_seed(seed + start)
    rng = np.random.default_rng([seed, 1, start])
    loop = Loop("autoencoder", num_steps, start=start)
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=100))
        pixels = task.batch(rng, batch_size)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = model.encode(pixels).latent_dist
            decoded = model.decode(posterior.sample()).sample
        decoded = decoded.float()
        mse, l1 = (decoded - pixels).square().mean(), (decoded - pixels).abs().mean()
        edge = sum((a - b).abs().mean() for a, b in zip(_edges(decoded), _edges(pixels), strict=True))
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        kl = 0.5 * (mean.square() + logvar.exp() - 1.0 - logvar).mean()
        loss = MSE_WEIGHT * mse + L1_WEIGHT * l1 + task.edge_weight * edge + KL_WEIGHT * kl
        norm = descend(loss, optimizers)
        average.update_parameters(model)
        loop.note(l1=l1, kl=kl, norm=norm, psnr=-10 * torch.log10(mse / 4))
        if (step + 1) % checkpoint_every == 0 or step + 1 == num_steps:
            checkpoint.save(step + 1)
    _normalised(task, average.module.eval(), np.random.default_rng([seed, 2]), num_measured).save_pretrained(
        folder / "vae"
    )
