"""Latents seen through the noise: each frequency weighted by how far the clean signal stands out of it.

Legend: B batch, C channels, T frames, H rows, W columns, N tokens (T · H · W of them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from omnireuse.diffusion.reuse.noise import NoiseLevel
from omnireuse.errors import UnsupportedModelError

__all__ = ["filtered", "grid_of"]

LEAST_SHARE = 1e-3
"""Of signal and of noise: at the very ends of a schedule the filter would otherwise be 0/0 at frequency 0."""


def filtered(latents: torch.Tensor, level: NoiseLevel, grid: tuple[int, ...] | None) -> torch.Tensor:
    """The latents through the optimal linear denoiser of this noise level, in float32.

    A latent is a · clean + b · noise; with a clean power spectrum of |f|^-β and white noise the least-squares filter is
    G(f) = a |f|^-β / (a² |f|^-β + b²), divided by its own mean, so that distances at different levels compare.

    Source: SeaCache, arXiv 2602.18993: the filter, its normalisation (eq. 7) and β = 3 for video, as diffusers 0.42
    (`hooks/sea_cache.py`) implements them. Ours: |f| is the length of the frequency vector, where diffusers multiplies
    one filter an axis; β = 2, the spectrum of natural images, for two axes; a and b are those of the noise level,
    whatever the parametrisation.

    Args:
        latents: (B, C, H, W), (B, C, T, H, W), or (B, N, C) with `grid`.
        level: where the schedule stands.
        grid: sizes of the axes that N unfolds to; None for latents that show theirs.

    Raises:
        UnsupportedModelError: an unknown noise level, or latents without a grid.

    Cost: one FFT of the latents and back.
    """
    if level.sample_weight is None:
        raise UnsupportedModelError(
            "signal 'filtered_latents' needs the noise of the scheduler, which is not known; use signal 'latents'"
        )
    field = latents.float()
    if grid is not None:
        field = field.unflatten(1, grid).movedim(-1, 1)
    axes = tuple(range(2, field.ndim))
    noise = min(max(level.coordinate, LEAST_SHARE), 1 - LEAST_SHARE)
    gain = _gain(field.shape[2:], 1 - noise, noise, field.device)
    seen: torch.Tensor = torch.fft.ifftn(torch.fft.fftn(field, dim=axes) * gain, dim=axes).real
    return seen


def _gain(sizes: torch.Size, signal: float, noise: float, device: torch.device) -> torch.Tensor:
    squared = torch.zeros((), device=device)
    for size in sizes:
        squared = squared.unsqueeze(-1) + torch.fft.fftfreq(size, device=device).square()
    # Both sides of the fraction times |f|^β: no infinity at frequency 0.
    inverse_power = squared ** (len(sizes) / 2)
    gain = signal / (signal**2 + noise**2 * inverse_power)
    return gain / gain.mean()


def grid_of(latents: torch.Tensor, kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """How tokens lie in space, as a denoiser's other arguments tell it: `img_ids` (Flux), `img_shapes` (Qwen-Image),
    `num_frames`, `height` and `width` (LTX). None for latents that show it themselves.

    Raises:
        UnsupportedModelError: tokens whose arrangement nothing tells.
    """
    if latents.ndim >= 4:
        return None
    if latents.ndim == 3:
        tokens = latents.shape[1]
        for grid in _told(kwargs):
            if grid.numel() == tokens:
                return tuple(size for i, size in enumerate(grid) if size > 1 or i >= len(grid) - 2)
    raise UnsupportedModelError(
        f"signal 'filtered_latents' cannot tell rows and columns of latents of shape {tuple(latents.shape)}; "
        "use signal 'latents'"
    )


def _told(kwargs: Mapping[str, Any]) -> list[torch.Size]:
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
