"""The sampling of a ComfyUI graph."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.pipelines.pictures import Picture
from omnireuse.profiles.conditions import Conditions
from omnireuse.profiles.holding import held_in
from omnireuse.prompts.fingerprint import tensor_checksum

__all__ = ["MADE_HERE", "Graph", "conditions_of", "content_of", "fingerprint_of", "sampler_name"]

MADE_HERE = "Omnireuse calibrate in ComfyUI: "
"""The `command` of a profile that was made here begins so."""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The sampling of a graph.

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


def conditions_of(model: Any, sampler: str) -> Conditions:
    """Under which conditions a model computes: its weights, and what LoRA loaders have put on it. The same before and
    after it was loaded.

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
    kind, digest = fingerprint_of(model)
    held = held_in([state])
    return Conditions(
        model=kind,
        config_digest=digest,
        scheduler=sampler,
        weights=held.weights,
        adapters=(str(held_in([patches]).weights),) if patches else (),
        dtype=str(model.model_dtype()).removeprefix("torch."),
        holding=held.kinds,
    )


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
