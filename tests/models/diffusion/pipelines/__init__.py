"""Tiny real diffusers pipelines beyond the four of `tiny`: other guidance, other inputs, other schedulers."""

from tests.models.diffusion.denoisers import NEWEST as NEWEST  # skips where diffusers is older
