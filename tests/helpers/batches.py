"""Batches of tiny pipelines, and each of their samples alone."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import torch

import omnireuse
from omnireuse import TeaCache
from tests.helpers.tiny import Tiny

__all__ = ["NUMBERS", "STEPS", "batched", "deviations", "generators", "parameters_of", "threshold_between"]

STEPS = 8
NUMBERS = ("num_images_per_prompt", "num_videos_per_prompt", "num_waveforms_per_prompt")
BATCH_DIMENSION = {"prompt_embeds_llama3": 1, "negative_prompt_embeds_llama3": 1}
SCALES = (0.3, 1.0, 3.0)
"""Of the embeddings of each sample, so that a measuring policy has a reason to treat them differently."""


def generators(*indices: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(index) for index in indices]


def parameters_of(tiny: Tiny) -> set[str]:
    """The arguments of a pipeline, whatever a subclass hands on."""
    calls = [vars(cls)["__call__"] for cls in type(tiny.pipe).__mro__ if "__call__" in vars(cls)]
    return {name for call in calls for name in inspect.signature(call).parameters}


def batched(given: dict[str, Any], rows: tuple[int, ...], *, images: bool) -> dict[str, Any]:
    """The arguments for prompts of these numbers, of which each is the given one times a factor.

    Args:
        images: whether each has an image of its own; one for all otherwise.
    """
    return {name: _batched(name, value, rows, images) for name, value in given.items()}


def _batched(name: str, value: Any, rows: tuple[int, ...], images: bool) -> Any:
    if name.endswith("cu_seqlens"):
        return torch.tensor([0, *(int(value[1]) * (row + 1) for row in range(len(rows)))], dtype=value.dtype)
    if isinstance(value, list) and name.endswith("prompt_embeds"):
        return [item * SCALES[row] for row in rows for item in value]
    if name == "prompt":
        return [value] * len(rows)
    is_shared = "image" in name and "embeds" not in name and not images
    if not isinstance(value, torch.Tensor) or is_shared:
        return value
    is_text = value.is_floating_point() and "embeds" in name and "mask" not in name
    scaled = [value * SCALES[row] if is_text else value for row in rows]
    return torch.cat(scaled, dim=BATCH_DIMENSION.get(name, 0))


def threshold_between(tiny: Tiny, region: str, **call: Any) -> float:
    """One at which the first step that may be reused is reused for some samples only."""
    with omnireuse.enable(tiny.pipe, policy=TeaCache(rel_l1_thresh=1e-9), region=region) as handle:
        tiny.run(steps=STEPS, **call)
    drifts = sorted({event.drift for event in handle.events if event.step == 1 and event.drift is not None})
    # Those that are as good as equal differ by rounding.
    pairs = [pair for pair in pairwise(drifts) if pair[1] > 1.001 * pair[0]] or [(drifts[-1], drifts[-1] * 2)]
    return sum(max(pairs, key=lambda pair: pair[1] / pair[0])) / 2


def deviations(batch: torch.Tensor, alone: list[torch.Tensor]) -> list[float]:
    """Of each sample of a batch from what it is alone, relative to its mean magnitude."""
    return [
        float((batch[i : i + 1] - each).abs().mean() / each.abs().mean().clamp(min=1e-12))
        for i, each in enumerate(alone)
    ]
