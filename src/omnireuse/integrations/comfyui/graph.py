"""What a ComfyUI graph samples with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.diffusion.calibration.origin import Origin, weights_digest
from omnireuse.diffusion.fingerprint import tensor_checksum
from omnireuse.pipelines.pictures import Picture

__all__ = ["MADE_HERE", "Graph", "content_of", "fingerprint_of", "origin_of", "sampler_name"]

MADE_HERE = "Omnireuse calibrate in ComfyUI: "
"""How the `command` of a profile that was made here begins."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """What a graph samples with.

    Attributes:
        model: ComfyUI's `ModelPatcher`.
        positive: ComfyUI's conditionings, one for each prompt.
        negative: one for all, or one for each.
        sampler: ComfyUI's sampler.
        sigmas: of the steps, and the one at which a run ends.
        cfg: scale of guidance.
        latent: that runs begin with, shape (1, …).
        seed: of the first prompt's noise; each further one adds 1.
        sample: from a model, a positive and a negative conditioning and a seed to the final latents.
        decode: from these to a picture, (height, width, channels) in 0…1; a clip has its frames first.
    """

    model: Any
    positive: Sequence[Any]
    negative: Sequence[Any]
    sampler: Any
    sigmas: Sequence[float]
    cfg: float
    latent: torch.Tensor
    seed: int
    sample: Callable[[Any, Any, Any, int], torch.Tensor]
    decode: Callable[[torch.Tensor], Picture]

    def run(self, model: Any, place: int) -> torch.Tensor:
        """The final latents of a prompt, with a clone of the model."""
        negative = self.negative[place % len(self.negative)]
        return self.sample(model, self.positive[place], negative, self.seed + place)


def sampler_name(sampler: Any) -> str:
    """The name of a sampler's function."""
    function = getattr(sampler, "sampler_function", None)
    return str(getattr(function, "__name__", type(sampler).__name__)).removeprefix("sample_")


def fingerprint_of(model: Any) -> tuple[str, str]:
    """Class of a model, and digest of its configuration."""
    config = getattr(getattr(model.model, "model_config", None), "unet_config", {})
    text = json.dumps(config, sort_keys=True, default=str)
    return type(model.model).__name__, hashlib.sha256(text.encode()).hexdigest()[:16]


def origin_of(model: Any) -> Origin:
    """The weights of a model, and what LoRA loaders have put on it. The same before and after it was loaded.

    Cost: reads 64 values of each weight.
    """
    kept = {name: each.weight for name, each in model.backup.items()}
    state = {
        name: kept.get(f"diffusion_model.{name}", tensor)
        for name, tensor in model.model.diffusion_model.state_dict().items()
    }
    patches = {
        f"{name} {number} {strength} {base} {place}": leaf
        for name, each in model.patches.items()
        for number, (strength, value, base, *_) in enumerate(each)
        for place, leaf in enumerate(pytree.tree_leaves(getattr(value, "weights", value)))
    }
    adapters = (str(weights_digest([patches])),) if patches else ()
    return Origin(name="a model of ComfyUI", weights=weights_digest([state]), adapters=adapters)


def content_of(value: Any) -> str:
    """A digest of a conditioning: of its tensors and numbers, and of the strength, range and picture of its
    controls."""
    found = hashlib.sha256()
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            text = f"{leaf.dtype} {tuple(leaf.shape)} {tensor_checksum(leaf)}"
        elif isinstance(leaf, (str, int, float, bool, type(None))):
            text = repr(leaf)
        else:
            own = [getattr(leaf, name, None) for name in ("strength", "timestep_percent_range", "cond_hint_original")]
            text = f"{type(leaf).__name__} {content_of(own)}"
        found.update(f"{text};".encode())
    return found.hexdigest()[:16]
