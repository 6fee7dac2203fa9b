"""Signals watched between steps, and the measure of their change.

A change is a (numerator, denominator) pair, so that a sum over ranks, uneven shards included, gives what one machine
would have measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from omnireuse import messages
from omnireuse.errors import UnsupportedModelError

__all__ = ["change_of", "filtered", "grid_of", "magnitude"]

LEAST_SHARE = 1e-3
"""Least level of signal and of noise: at a schedule's ends the filter would be 0/0 at frequency 0."""


def change_of(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Relative L1 change as a pair: (Σ|now − before|, Σ|before|), float32, shape (2,), on the tensors' device."""
    before = before.float()
    return torch.stack(((now.float() - before).abs().sum(), before.abs().sum()))


def magnitude(*values: torch.Tensor) -> torch.Tensor:
    """Mean absolute value over all elements of all tensors, a float32 scalar on their device."""
    total = torch.stack([value.float().abs().sum() for value in values]).sum()
    return total / max(sum(value.numel() for value in values), 1)


def filtered(latents: torch.Tensor, noise: float | None, grid: tuple[int, ...] | None) -> torch.Tensor:
    """The latents through the optimal linear denoiser of this noise level, in float32.

    A latent is a · clean + b · noise; with a clean power spectrum of |f|^-β and white noise the least-squares filter is
    G(f) = a |f|^-β / (a² |f|^-β + b²), divided by its own mean, so that distances at different levels compare.

    Source: SeaCache, arXiv 2602.18993: the filter, its normalisation (eq. 7) and β = 3 for video, as diffusers 0.42
    (`hooks/sea_cache.py`) implements them. Ours: |f| is the length of the frequency vector, while diffusers multiplies
    one filter an axis; β = 2, the spectrum of natural images, for two axes; a and b are those of the noise level,
    whatever the parametrisation.

    Args:
        latents: shape (batch, channels, rows, columns), (batch, channels, frames, rows, columns), or
            (batch, tokens, channels) with `grid`.
        noise: noise fraction in the latents, in [0, 1]; None if it is not known.
        grid: sizes of the axes that the tokens unfold to; None for latents that show theirs.

    Raises:
        UnsupportedModelError: an unknown noise level, or latents without a grid.

    Cost: one FFT of the latents and back.
    """
    if noise is None:
        raise UnsupportedModelError(messages.NOISE_UNKNOWN)
    field = latents.float()
    if grid is not None:
        field = field.unflatten(1, grid).movedim(-1, 1)
    axes, sizes = tuple(range(2, field.ndim)), field.shape[2:]
    noise = min(max(noise, LEAST_SHARE), 1 - LEAST_SHARE)
    squared = torch.zeros((), device=field.device)
    for size in sizes:
        squared = squared.unsqueeze(-1) + torch.fft.fftfreq(size, device=field.device).square()
    # Both sides of the fraction times |f|^β: no infinity at frequency 0.
    gain = (1 - noise) / ((1 - noise) ** 2 + noise**2 * squared ** (len(sizes) / 2))
    seen: torch.Tensor = torch.fft.ifftn(torch.fft.fftn(field, dim=axes) * (gain / gain.mean()), dim=axes).real
    return seen


def grid_of(latents: torch.Tensor, kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The grid of the tokens, from a denoiser's other arguments: `img_ids` (Flux), `img_shapes` (Qwen-Image),
    `num_frames`, `height` and `width` (LTX). None for latents that show it themselves.

    Raises:
        UnsupportedModelError: tokens whose arrangement is not known.
    """
    if latents.ndim >= 4:
        return None
    if latents.ndim == 3:
        for grid in _grids(kwargs):
            if grid.numel() == latents.shape[1]:
                return tuple(size for i, size in enumerate(grid) if size > 1 or i >= len(grid) - 2)
    raise UnsupportedModelError(messages.NO_ROWS_AND_COLUMNS, shape=tuple(latents.shape))


def _grids(kwargs: Mapping[str, Any]) -> list[torch.Size]:
    found = []
    ids, shapes = kwargs.get("img_ids"), kwargs.get("img_shapes")
    if isinstance(ids, torch.Tensor):
        positions = ids.reshape(-1, ids.shape[-1]) if ids.ndim < 3 else ids[0]
        found.append(torch.Size(int(column.unique().numel()) for column in positions[:, :3].unbind(1)))
    while isinstance(shapes, (list, tuple)) and shapes and isinstance(shapes[0], (list, tuple)):
        shapes = shapes[0]
    if isinstance(shapes, (list, tuple)) and all(isinstance(size, int) for size in shapes):
        found.append(torch.Size(shapes))
    sizes = [kwargs.get(name, 1) for name in ("num_frames", "height", "width")]
    if all(isinstance(size, int) for size in sizes):
        found.append(torch.Size(sizes))
    return found
