"""Extractors: where a denoiser's blocks are, for denoisers that this library does not declare."""

from omnireuse.models.extractors import CacheContext, Extractor, get_extractor, register_extractor

__all__ = ["CacheContext", "Extractor", "get_extractor", "register_extractor"]
