"""The training of the image pipeline: autoencoder, reading lesson, flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, FluxPipeline

from reference.captions import caption, sample_split
from reference.drawing import Array
from reference.models import LATENT_CHANNELS, LATENT_SIZE, FlowModel, init_adaptive_norms, new_autoencoder
from reference.scenes import draw, sample_scene
from reference.tokenizers import IMAGE_TOKENIZERS
from reference.train.autoencoder import AutoencoderTask, train_autoencoder
from reference.train.export import export_pipeline
from reference.train.flow import FlowTask, train_flow
from reference.train.recipe import Recipe
from reference.train.text import train_text


def _draw_any(rng: np.random.Generator) -> Array:
    return draw(sample_scene(rng), rng)


def _normalisation(latents: torch.Tensor) -> dict[str, Any]:
    return {"scaling_factor": 1.0 / float(latents.std()), "shift_factor": float(latents.mean())}


def normalise(vae: AutoencoderKL, latents: torch.Tensor) -> torch.Tensor:
    """Packed: (B, 64, 32)."""
    latents = (latents - vae.config.shift_factor) * vae.config.scaling_factor
    packed: torch.Tensor = FluxPipeline._pack_latents(latents, len(latents), LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE)
    return packed


def _new_flow(folder: Path) -> FlowModel:
    """With text encoders that learnt to read in `train_text`."""
    model = FlowModel()
    init_adaptive_norms(model.transformer)
    text = torch.load(folder / "text.pt", weights_only=True)
    model.clip.load_state_dict(text["clip"])
    model.t5.load_state_dict(text["t5"])
    return model


AUTOENCODER = AutoencoderTask(new=new_autoencoder, draw=_draw_any, normalisation=_normalisation, edge_weight=0.1)

FLOW = FlowTask(
    load_autoencoder=AutoencoderKL.from_pretrained,
    normalise=normalise,
    new=_new_flow,
    tokenizers=IMAGE_TOKENIZERS,
    sample=partial(sample_split, held_out=False),
    draw=draw,
    caption=caption,
)


def export_images(
    vae: AutoencoderKL,
    flow: FlowModel,
    target: Path,
    tokenizers: Mapping[str, Callable[[Path], None]] = IMAGE_TOKENIZERS,
) -> None:
    """Write what was trained to ``target`` as a ``FluxPipeline``."""
    export_pipeline(
        FluxPipeline,
        target,
        tokenizers,
        vae=vae,
        text_encoder=flow.clip,
        text_encoder_2=flow.t5,
        transformer=flow.transformer,
    )


def export_run(folder: Path, target: Path) -> None:
    """Export the last checkpoint of the training folder ``folder``."""
    flow = FlowModel()
    flow.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    export_images(AutoencoderKL.from_pretrained(folder / "vae"), flow.eval(), target)


IMAGES = Recipe(
    name="shapes-flux",
    stages={
        "autoencoder": (partial(train_autoencoder, AUTOENCODER, batch_size=16, num_measured=1024), 2600),
        "text": (train_text, 600),
        "flow": (partial(train_flow, FLOW), 2500),
    },
    num_scenes=48_000,
    export=export_run,
)
