"""Tiny random denoisers, one factory a class, with inputs of their own: no pipeline, no text encoder, no download."""

from __future__ import annotations

from collections.abc import Callable

from denoisers import image, image_flux, other, video
from denoisers.base import Denoiser

DENOISERS: dict[str, Callable[[], Denoiser]] = {
    **image_flux.DENOISERS,
    **image.DENOISERS,
    **video.DENOISERS,
    **other.DENOISERS,
}
"""Class name -> factory."""
