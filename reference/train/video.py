"""The training of the video pipeline: autoencoder, flow, and the decoder once more."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanPipeline

from reference.drawing import Array
from reference.train.autoencoder import (
    L1_WEIGHT,
    MSE_WEIGHT,
    AutoencoderTask,
    channels_last,
    train_autoencoder,
)
from reference.train.export import export_pipeline
from reference.train.flow import FlowTask, train_flow
from reference.train.loop import Loop, averaged, descend, learning_rate_factor, set_learning_rates
from reference.train.recipe import Recipe
from reference.video.captions import caption, sample_split
from reference.video.models import TOKENIZERS, VideoFlowModel, init_adaptive_norms, new_autoencoder
from reference.video.scenes import draw, sample_scene

BATCH_SIZE = 8
DECODER_LR, OBJECT_WEIGHT = 1e-3, 3.0


def _draw_any(rng: np.random.Generator) -> Array:
    return draw(sample_scene(rng), rng)


def _normalisation(latents: torch.Tensor) -> dict[str, Any]:
    """By channel."""
    channels = latents.transpose(0, 1).flatten(1)
    return {"mean": channels.mean(1).tolist(), "std": channels.std(1).tolist()}


def _normalise(vae: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1) for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return (latents - mean) / std


def _new_flow(folder: Path) -> VideoFlowModel:
    """From nothing: every word names one thing wherever it stands, so that the flow itself teaches to read."""
    model = VideoFlowModel()
    init_adaptive_norms(model.transformer)
    return model


AUTOENCODER = AutoencoderTask(new=new_autoencoder, draw=_draw_any, normalisation=_normalisation)

FLOW = FlowTask(
    load_autoencoder=AutoencoderKLWan.from_pretrained,
    normalise=_normalise,
    new=_new_flow,
    tokenizers=TOKENIZERS,
    sample=partial(sample_split, held_out=False),
    draw=draw,
    caption=caption,
)


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
    optimizers = [torch.optim.AdamW(parameters, lr=DECODER_LR, betas=(0.9, 0.98), weight_decay=1e-4)]
    loop = Loop("decoder", num_steps)
    for step in loop:
        set_learning_rates(optimizers, learning_rate_factor(step, num_steps, warmup=20))
        clips = AUTOENCODER.batch(rng, batch_size)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                latents = model.encode(clips).latent_dist.sample()
            decoded = model.decode(latents).sample
        off = decoded.float() - clips
        background = clips.flatten(2).median(-1).values[..., None, None, None]
        weight = 1.0 + OBJECT_WEIGHT * ((clips - background).abs().amax(1, keepdim=True) > 0.3)
        loss = (weight * (MSE_WEIGHT * off.square() + L1_WEIGHT * off.abs())).mean()
        descend(loss, optimizers)
        average.update_parameters(model)
        loop.note(loss=loss, psnr=-10 * torch.log10(off.detach().square().mean() / 4))
    refined: AutoencoderKLWan = average.module
    refined.save_pretrained(folder / "vae-refined")


def export_clips(vae: AutoencoderKLWan, flow: VideoFlowModel, target: Path) -> None:
    """Write what was trained to ``target`` as a ``WanPipeline``."""
    export_pipeline(
        WanPipeline, target, TOKENIZERS, vae=vae, text_encoder=flow.text_encoder, transformer=flow.transformer
    )


def export_run(folder: Path, target: Path) -> None:
    """Export the last checkpoint of the training folder ``folder``, with the refined decoder where there is one."""
    refined = folder / "vae-refined"
    flow = VideoFlowModel()
    flow.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    vae = AutoencoderKLWan.from_pretrained(refined if refined.exists() else folder / "vae")
    export_clips(vae, flow.eval(), target)


CLIPS = Recipe(
    name="shapes-wan",
    stages={
        "autoencoder": (partial(train_autoencoder, AUTOENCODER, batch_size=BATCH_SIZE, num_measured=256), 3600),
        "flow": (partial(train_flow, FLOW), 1600),
        "decoder": (refine_decoder, 600),
    },
    num_scenes=12_000,
    export=export_run,
)
