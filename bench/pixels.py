"""Schedulers that bound x0, on a model of pixels: the default beside holding and beside fewer steps.

    python -m bench pixels [--train-steps 1000] [--pictures 8] [--out out/bench]

The first call trains an unconditional U-Net on scenes of 32 × 32 pixels (ten minutes on one core), whose weights stay
in the folder; a training that was stopped goes on from its last checkpoint. PSNR in dB to the full run of 28 steps of
the same scheduler, mean and lowest over pictures of one noise each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import (
    DDIMPipeline,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    UNet2DModel,
)
from rich.console import Console
from torch import nn
from torch.nn.utils import parametrize

import omnireuse
from bench._common import new_table, no_warnings, write_record
from omnireuse import Steps
from omnireuse.pipelines.pictures import psnr
from omnireuse_lab.record import environment
from reference.drawing import Array
from reference.scenes import draw, sample_scene
from reference.train.loop import Checkpoint, Loop, averaged, descend, learning_rate_factor, set_learning_rates
from reference.train.unet import Flat

SIZE, SCENES, BATCH = 32, 8192, 32
STEPS, BUDGETS, SEED = 28, (14, 9), 9100
SAVE_EVERY = 200
SCHEDULERS: dict[str, Callable[[], Any]] = {
    "DDIM": lambda: DDIMScheduler(clip_sample=False),
    "DDIM, clip_sample": lambda: DDIMScheduler(clip_sample=True),
    "DDIM, thresholding": lambda: DDIMScheduler(clip_sample=False, thresholding=True),
    "DDPM": lambda: DDPMScheduler(clip_sample=False),
    "DDPM, clip_sample": lambda: DDPMScheduler(clip_sample=True),
    "DDPM, thresholding": lambda: DDPMScheduler(clip_sample=False, thresholding=True),
    "DPM++ 2M": lambda: DPMSolverMultistepScheduler(),
    "DPM++ 2M, thresholding": lambda: DPMSolverMultistepScheduler(thresholding=True),
}

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, run, write ``pixels.json`` and show a table."""
    parser = argparse.ArgumentParser(prog="python -m bench pixels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--train-steps", type=int, default=1000)
    parser.add_argument("--scheduler", nargs="+", choices=SCHEDULERS, default=list(SCHEDULERS))
    parser.add_argument("--pictures", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    unet = trained(options.out / "pixels", options.train_steps)
    rows: list[Row] = []
    with no_warnings():
        for name in options.scheduler:
            rows += Player(unet, name, options.pictures).rows()
            record = {"command": "python -m bench pixels", "environment": environment(), "rows": rows}
            write_record(record, options.out, "pixels", quiet=name != options.scheduler[-1])
    show(rows, Console())


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


class Player:
    """Pictures of one scheduler, each with noise of its own."""

    def __init__(self, unet: Any, scheduler: str, pictures: int) -> None:
        self._name, self._pictures = scheduler, pictures
        made = SCHEDULERS[scheduler]()
        pipeline = DDIMPipeline if isinstance(made, DDIMScheduler) else DDPMPipeline
        self.pipe: Any = pipeline(unet.eval(), made)
        # The pipeline makes a scheduler of its own kind of what it is given.
        self.pipe.register_modules(scheduler=made)
        self.pipe.set_progress_bar_config(disable=True)
        self._full = self.run(STEPS)

    def run(self, steps: int, first: int = SEED) -> Array:
        """The pictures in so many steps, (B, height, width, 3) in 0…1."""
        generators = [torch.Generator().manual_seed(first + i) for i in range(self._pictures)]
        made = self.pipe(batch_size=self._pictures, generator=generators, num_inference_steps=steps, output_type="np")
        return np.asarray(made.images)

    def rows(self) -> list[Row]:
        """One row for each budget."""
        return [self._row(count) for count in BUDGETS]

    def _row(self, count: int) -> Row:
        with omnireuse.enable(self.pipe, computed_steps=count, tune=False) as handle:
            made = {"untuned": self.run(STEPS)}
            computed = tuple(sorted({event.step for event in handle.events if not event.reused}))
        schedule = Steps(steps=computed, compute_last=False)
        for target in ("output", "x0"):
            for forecaster in ("hold", "blend"):
                made[f"{forecaster} {target}"] = self._with(
                    policy=schedule, forecaster=forecaster, prediction_target=target
                )
        made["tuned"] = self._tuned(count)
        made["fewer"] = self.run(count)
        each = {name: self._judged(pictures) for name, pictures in made.items()}
        return {"scheduler": self._name, "computed": len(computed), "each": each}

    def _with(self, **options: Any) -> Array:
        with omnireuse.enable(self.pipe, **options):
            return self.run(STEPS)

    def _tuned(self, count: int) -> Array:
        """After three pictures of other noise, whose plan is kept nowhere."""
        with tempfile.TemporaryDirectory() as cache:
            before = {name: os.environ.get(name) for name in ("OMNIREUSE_TUNE", "OMNIREUSE_CACHE_DIR")}
            os.environ.update(OMNIREUSE_TUNE="1", OMNIREUSE_CACHE_DIR=cache)
            try:
                with omnireuse.enable(self.pipe, computed_steps=count, tune=3) as handle:
                    while handle.tuning.state == "measuring":
                        self.run(STEPS, first=SEED - 100)
                    return self.run(STEPS)
            finally:
                for name, value in before.items():
                    os.environ.pop(name) if value is None else os.environ.update({name: value})

    def _judged(self, made: Array) -> list[float]:
        return [min(psnr(a, b), 100.0) for a, b in zip(made, self._full, strict=True)]


def show(rows: list[Row], console: Console) -> None:
    """Mean and lowest of each way."""
    names = list(rows[0]["each"])
    table = new_table(f"PSNR to the full run of {STEPS} steps, mean (lowest)", "scheduler", "computed", *names)
    for row in rows:
        cells = [f"{statistics.fmean(each):.1f} ({min(each):.0f})" for each in row["each"].values()]
        table.add_row(row["scheduler"], str(row["computed"]), *cells)
    console.print(table)
