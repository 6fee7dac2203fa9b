"""The training of the pipelines with a U-Net: one stage, on the autoencoder and the text encoder of shapes-flux."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline
from transformers import CLIPTextModel

from reference.captions import caption, sample_split
from reference.load import find_image_pipeline
from reference.scenes import draw
from reference.tokenizers import IMAGE_TOKENIZERS
from reference.train.export import export_pipeline
from reference.train.flow import Example, FlowTask, train_flow
from reference.train.recipe import Recipe
from reference.unets import SD, TRAIN_STEPS, UNetKind, UNetModel, V

#: Errors of epsilon count as those of v do, α⁻² times, but never more than this: noise levels where hardly anything of
#: the picture is left would rule the gradient.
MAX_WEIGHT = 25.0
TOKENIZERS = {"tokenizer": IMAGE_TOKENIZERS["tokenizer"]}


def load_autoencoder(folder: Path) -> AutoencoderKL:
    """That of shapes-flux without its shift, which StableDiffusionPipeline does not know; `folder` holds none."""
    trained = AutoencoderKL.from_pretrained(find_image_pipeline() / "vae")
    trained.register_to_config(shift_factor=None)
    return trained


def _normalise(vae: AutoencoderKL, latents: torch.Tensor) -> torch.Tensor:
    return latents * float(vae.config.scaling_factor)


def diffuse(kind: UNetKind, clean: torch.Tensor) -> Example:
    """Latents at the noise levels of training, drawn evenly, and what the U-Net should return."""
    count = len(clean)
    even = (torch.arange(count) + torch.rand(count)) / count
    timestep = (even * TRAIN_STEPS).long().clamp_max(TRAIN_STEPS - 1)
    kept = kind.new_scheduler().alphas_cumprod[timestep].view(-1, 1, 1, 1)
    noise = torch.randn_like(clean)
    noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
    if kind.prediction == "v_prediction":
        target = kept.sqrt() * noise - (1 - kept).sqrt() * clean
        return Example(noisy=noisy, level=timestep, target=target)
    return Example(noisy=noisy, level=timestep, target=noise, weight=(1 / kept).clamp_max(MAX_WEIGHT))


def _new(kind: UNetKind, folder: Path) -> UNetModel:
    """With the text encoder of shapes-flux, which can read."""
    unet = kind.new_unet()
    torch.nn.init.zeros_(unet.conv_out.weight)
    return UNetModel(unet, CLIPTextModel.from_pretrained(find_image_pipeline() / "text_encoder"))


def _task(kind: UNetKind) -> FlowTask:
    return FlowTask(
        load_autoencoder=load_autoencoder,
        normalise=_normalise,
        new=partial(_new, kind),
        tokenizers=TOKENIZERS,
        sample=partial(sample_split, held_out=False),
        draw=draw,
        caption=caption,
        corrupt=partial(diffuse, kind),
    )


def _export(kind: UNetKind, folder: Path, target: Path) -> None:
    model = _new(kind, folder)
    model.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    export_pipeline(
        StableDiffusionPipeline,
        target,
        TOKENIZERS,
        scheduler=kind.new_scheduler(),
        vae=load_autoencoder(folder),
        text_encoder=model.eval().clip,
        unet=model.unet,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _recipe(kind: UNetKind, num_steps: int) -> Recipe:
    return Recipe(
        name=kind.name,
        stages={"flow": (partial(train_flow, _task(kind)), num_steps)},
        num_scenes=16_000,
        export=partial(_export, kind),
    )


SD_IMAGES, V_IMAGES = _recipe(SD, 2500), _recipe(V, 2500)
