"""Models outside diffusers, served through a function that takes their forward apart."""

from __future__ import annotations

from omnireuse.diffusion.adapters.extractors import CacheContext, Extractor, get_extractor, register_extractor

__all__ = ["CacheContext", "Extractor", "get_extractor", "register_extractor"]
