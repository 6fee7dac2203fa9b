"""Configuration of diffusion caches, as engines pass it."""

from omnireuse.named.options import DiffusionCacheConfig, OmniDiffusionConfig

__all__ = ["DiffusionCacheConfig", "OmniDiffusionConfig"]
