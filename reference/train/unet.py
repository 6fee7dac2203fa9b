"""The training of shapes-sd: one stage, on the autoencoder and the text encoder of shapes-flux."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline
from torch import nn
from torch.nn.utils import parametrize
from transformers import CLIPTextModel

from reference.captions import caption, sample_split
from reference.load import find_image_pipeline
from reference.scenes import draw
from reference.tokenizers import IMAGE_TOKENIZERS
from reference.train.export import export_pipeline
from reference.train.flow import Example, FlowTask, train_flow
from reference.train.recipe import Recipe
from reference.unets import UNetModel, new_ddim, new_unet

#: Errors of the noise count as those of the velocity do, 1 / (kept signal) times, but never more than this: noise
#: levels where hardly anything of the picture is left would rule the gradient.
MAX_WEIGHT = 25.0
TOKENIZERS = {"tokenizer": IMAGE_TOKENIZERS["tokenizer"]}


class Flat(nn.Module):
    """Stores the weight of a convolution as a matrix, which is what Muon trains.

    With AdamW on the convolutions the loss was 0.28 after 1,600 steps; with Muon it is there after 450.
    """

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, matrix: torch.Tensor) -> torch.Tensor:
        """The weight."""
        return matrix.view(self.shape)

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        """The matrix (outputs, inputs * height * width)."""
        return weight.flatten(1)


def _convolutions(unet: nn.Module) -> list[nn.Conv2d]:
    ends = ("conv_in", "conv_out")
    return [part for name, part in unet.named_modules() if isinstance(part, nn.Conv2d) and name not in ends]


def load_autoencoder(folder: Path) -> AutoencoderKL:
    """That of shapes-flux without its shift, which StableDiffusionPipeline does not know; `folder` holds none."""
    trained = AutoencoderKL.from_pretrained(find_image_pipeline() / "vae")
    trained.register_to_config(shift_factor=None)
    return trained


def _normalise(vae: AutoencoderKL, latents: torch.Tensor) -> torch.Tensor:
    return latents * float(vae.config.scaling_factor)


def diffuse(clean: torch.Tensor) -> Example:
    """Latents at the noise levels of training, drawn evenly, and the noise in them."""
    scheduler, count = new_ddim(), len(clean)
    levels = int(scheduler.config.num_train_timesteps)
    even = (torch.arange(count) + torch.rand(count)) / count
    timestep = (even * levels).long().clamp_max(levels - 1)
    kept = scheduler.alphas_cumprod[timestep].view(-1, 1, 1, 1)
    noise = torch.randn_like(clean)
    noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
    return Example(noisy=noisy, level=timestep, target=noise, weight=(1 / kept).clamp_max(MAX_WEIGHT))


def _new(folder: Path) -> UNetModel:
    """With the text encoder of shapes-flux, which can read."""
    unet = new_unet()
    nn.init.zeros_(unet.conv_out.weight)
    for convolution in _convolutions(unet):
        parametrize.register_parametrization(convolution, "weight", Flat(convolution.weight.shape))
    return UNetModel(unet, CLIPTextModel.from_pretrained(find_image_pipeline() / "text_encoder"))


TASK = FlowTask(
    load_autoencoder=load_autoencoder,
    normalise=_normalise,
    new=_new,
    tokenizers=TOKENIZERS,
    sample=partial(sample_split, held_out=False),
    draw=draw,
    caption=caption,
    corrupt=diffuse,
)


def export_run(folder: Path, target: Path) -> None:
    """Export the last checkpoint of the training folder ``folder``."""
    model = _new(folder)
    model.load_state_dict(torch.load(folder / "flow.pt", weights_only=True))
    for convolution in _convolutions(model.unet):
        parametrize.remove_parametrizations(convolution, "weight")
    export_pipeline(
        StableDiffusionPipeline,
        target,
        TOKENIZERS,
        scheduler=new_ddim(),
        vae=load_autoencoder(folder),
        text_encoder=model.eval().clip,
        unet=model.unet,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


UNET = Recipe(
    name="shapes-sd",
    stages={"flow": (partial(train_flow, TASK, batch_size=32), 6000)},
    num_scenes=12_800,
    export=export_run,
)
