"""Every tiny denoiser by the name of its class."""

from __future__ import annotations

from collections.abc import Callable

from tests.models.diffusion.denoisers import hunyuan, image, image_flux, image_later, other, video
from tests.models.diffusion.denoisers.base import Denoiser

DENOISERS: dict[str, Callable[[], Denoiser]] = {
    **image_flux.DENOISERS,
    **image.DENOISERS,
    **image_later.DENOISERS,
    **video.DENOISERS,
    **hunyuan.DENOISERS,
    **other.DENOISERS,
}
"""Class name -> factory."""
