"""What a factory gives, and how it fills weights and inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Denoiser:
    """A model and the arguments of one call: `inputs(step, text)`, for a step and a number of text tokens."""

    model: Any
    inputs: Callable[[int, int], dict[str, Any]]


def varied(module: Any, seed: int = 0) -> Any:
    """Random weights: zero-initialised output layers would make every step alike."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return module.eval()


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    """Noise, the same for the same seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def time(step: int, scale: float = 1000.0) -> torch.Tensor:
    """The time of a step, falling from `scale`."""
    return torch.tensor([scale * (0.9 - 0.05 * step)])


def ids(count: int, axes: int) -> torch.Tensor:
    """Positions of so many tokens."""
    return torch.arange(count, dtype=torch.float32)[:, None].expand(count, axes).contiguous()
