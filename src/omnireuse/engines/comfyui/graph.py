"""The identity of a run of ComfyUI: its sampler, its model and its conditionings."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.profiles.conditions import Conditions
from omnireuse.profiles.holding import held_in
from omnireuse.prompts.checksum import tensor_checksum

__all__ = ["conditions_of", "content_of", "sampler_name"]


def sampler_name(sampler: Any) -> str:
    """The name of a sampler's function."""
    function = getattr(sampler, "sampler_function", None)
    return str(getattr(function, "__name__", type(sampler).__name__)).removeprefix("sample_")


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
    config = json.dumps(
        getattr(getattr(model.model, "model_config", None), "unet_config", {}), sort_keys=True, default=str
    )
    held = held_in([state])
    return Conditions(
        model=type(model.model).__name__,
        config_digest=hashlib.sha256(config.encode()).hexdigest()[:16],
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
