"""Reads the attributes back from a picture, with a small network that has learnt them on drawn pictures.

Its weights lie beside those of the pipeline. What is no person at all, it has learnt to be unsure of.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from omnireuse.errors import ConfigError
from reference.drawing import Array
from reference.faces.people import ATTRIBUTES, Person
from reference.load import find_faces_pipeline

IMAGE_SIZE = 64
WEIGHTS = "checker.safetensors"
CHANNELS = (3, 24, 48, 64, 64)
#: An attribute is seen where the network gives it at least this probability.
SURE = 0.7


class Reader(nn.Module):
    """Four convolutions, each of which halves the picture, and one linear answer to each of `ATTRIBUTES`."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for narrow, wide in pairwise(CHANNELS):
            layers += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Flatten())
        last = CHANNELS[-1] * (IMAGE_SIZE >> len(CHANNELS) - 1) ** 2
        self.heads = nn.ModuleList(nn.Linear(last, len(names)) for names in ATTRIBUTES.values())

    def forward(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        """Logits of each attribute, (B, values), from pictures (B, 3, 64, 64) in -1..1."""
        features = self.features(pixels)
        return [head(features) for head in self.heads]


@lru_cache(maxsize=2)
def load_reader(folder: Path) -> Reader:
    """The network whose weights lie in ``folder``."""
    reader = Reader()
    reader.load_state_dict({name: weight.float() for name, weight in load_file(folder / WEIGHTS).items()})
    return reader.eval()


@torch.no_grad()
def read(image: Array, reader: Reader | None = None) -> dict[str, str | None]:
    """The value of each attribute of ``image`` (64, 64, 3), float in 0..1; None where none is sure.

    Args:
        image: one picture.
        reader: that beside the pipeline's weights by default.

    Raises:
        ConfigError: for another shape, or when there are no weights.
    """
    image = np.asarray(image, np.float32)
    if image.shape != (IMAGE_SIZE, IMAGE_SIZE, 3):
        raise ConfigError(
            f"read(image.shape={image.shape}): image must be ({IMAGE_SIZE}, {IMAGE_SIZE}, 3) in 0..1; resize it first"
        )
    reader = reader or load_reader(find_faces_pipeline())
    logits = reader(torch.from_numpy(image).movedim(-1, 0)[None] * 2 - 1)
    found: dict[str, str | None] = {}
    for (name, values), logit in zip(ATTRIBUTES.items(), logits, strict=True):
        probability, answer = logit[0].softmax(-1).max(-1)
        found[name] = values[int(answer)] if probability >= SURE else None
    return found


def check(person: Person, image: Array, reader: Reader | None = None) -> dict[str, bool]:
    """Which attributes of ``person`` the image shows; the hair's colour counts where the caption tells one."""
    found = read(image, reader)
    asked = {name: value for name, value in asdict(person).items() if name != "hair_colour" or value}
    return {name: found[name] == value for name, value in asked.items()}
