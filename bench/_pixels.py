"""The U-Net of pixels that `bench harm` judges: trained to predict the noise in scenes of 32 × 32 pixels.

That takes ten minutes on one core. The weights stay in a folder, and a training that was stopped goes on from its last
checkpoint. What was measured on it is in ``bench/notes/2026-11-25-clipping.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch import nn
from torch.nn.utils import parametrize

from reference.scenes import draw, sample_scene
from reference.train.loop import Checkpoint, Loop, averaged, descend, learning_rate_factor, set_learning_rates
from reference.train.unet import Flat

__all__ = ["trained"]

SIZE, SCENES, BATCH = 32, 8192, 32
SAVE_EVERY = 200


def trained(folder: Path, num_steps: int) -> Any:
    """The U-Net of `folder`, trained to predict the noise in scenes, if that is not done yet."""
    if (folder / "config.json").is_file():
        return UNet2DModel.from_pretrained(folder)
    torch.manual_seed(0)
    unet: Any = UNet2DModel(
        sample_size=SIZE,
        block_out_channels=(32, 64, 96),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        attention_head_dim=32,
    )
    inner = [part for name, part in unet.named_modules() if isinstance(part, nn.Conv2d) and "blocks." in name]
    for convolution in inner:
        parametrize.register_parametrization(convolution, "weight", Flat(convolution.weight.shape))
    average = averaged(unet, 0.995)
    matrices = [weight for name, weight in unet.named_parameters() if name.endswith("original")]
    others = [weight for name, weight in unet.named_parameters() if not name.endswith("original")]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=3e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=1.5e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    checkpoint = Checkpoint(folder / "checkpoint.pt", unet, average, optimizers)
    start = checkpoint.load()
    torch.manual_seed(start)
    rng = np.random.default_rng(0)
    scenes = torch.from_numpy(np.stack([draw(sample_scene(rng), rng) for _ in range(SCENES)])).movedim(-1, 1)
    clean = torch.nn.functional.avg_pool2d(scenes, scenes.shape[-1] // SIZE) * 2 - 1
    scheduler = DDPMScheduler()
    loop = Loop("pixels", num_steps, start=start)
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=100))
        picked = clean[torch.randint(SCENES, (BATCH,))]
        noise, timesteps = torch.randn_like(picked), torch.randint(1000, (BATCH,))
        predicted = unet(scheduler.add_noise(picked, noise, timesteps), timesteps).sample
        loss = torch.nn.functional.mse_loss(predicted, noise)
        descend(loss, optimizers)
        average.update_parameters(unet)
        loop.note(loss=loss)
        if (step + 1) % SAVE_EVERY == 0:
            checkpoint.save(step + 1)
    for _, part in average.module.named_modules():
        if parametrize.is_parametrized(part):
            parametrize.remove_parametrizations(part, "weight")
    average.module.save_pretrained(folder)
    return average.module
