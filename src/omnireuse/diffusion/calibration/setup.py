"""What the scores of a search depend on, in short texts that can be compared."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import torch

from omnireuse.diffusion.fingerprint import tensor_checksum
from omnireuse.errors import ConfigError

__all__ = ["VERSIONS", "describe_setup"]

#: The libraries whose versions a search notes.
VERSIONS = ("omnireuse", "torch", "diffusers")


def describe_setup(
    pipeline: str,
    prompts: Sequence[str],
    *,
    for_search: int,
    batch_size: int,
    fit_prompts: int,
    seed: int,
    call: Mapping[str, Any],
    dtype: str,
    pictures: Callable[[Any], Any] | None,
) -> dict[str, str]:
    """Every part by its name.

    Args:
        pipeline: digest of the pipeline with its weights.
        prompts: all of them, those to search with first.
        for_search: how many those are.
        batch_size: prompts a call; batches differ in the last digits.
        fit_prompts: how many of those to search with weights are fitted on.
        seed: of the noise.
        call: whatever else the pipeline is called with.
        dtype: what it computes in.
        pictures: what reads its results; None where they are read as usual.

    Raises:
        ConfigError: an argument of the call that no other process could be given.
    """
    return {
        "pipeline": pipeline[:16],
        "prompts": hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16],
        "prompts searched with": str(for_search),
        "prompts a call": str(batch_size),
        "prompts fitted on": str(fit_prompts),
        "seed": str(seed),
        "dtype": dtype,
        "pictures": "as usual" if pictures is None else getattr(pictures, "__qualname__", type(pictures).__name__),
        **{name: json.dumps(value, sort_keys=True, default=_digest) for name, value in call.items()},
        **{f"{name} version": version(name) for name in VERSIONS},
    }


def _digest(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {tensor_checksum(value)}"
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"calibrate(journal=…): arguments of the call must be picklable, got {type(value).__name__} ({error})"
        ) from error
