"""Configuration of diffusion caches, as engines pass it (`omnireuse.named.options`)."""

from omnireuse.named.options import (
    CacheDiTOptions,
    Coefficients,
    DBCacheOptions,
    DiffusionCacheConfig,
    EasyCacheOptions,
    ErrorControlOptions,
    MagCacheOptions,
    OmniDiffusionConfig,
    Ratios,
    SeaCacheOptions,
    StepCountOptions,
    TaylorSeerOptions,
    TeaCacheOptions,
)

__all__ = [
    "CacheDiTOptions",
    "Coefficients",
    "DBCacheOptions",
    "DiffusionCacheConfig",
    "EasyCacheOptions",
    "ErrorControlOptions",
    "MagCacheOptions",
    "OmniDiffusionConfig",
    "Ratios",
    "SeaCacheOptions",
    "StepCountOptions",
    "TaylorSeerOptions",
    "TeaCacheOptions",
]
