"""The published ratios of magnitudes, by the class of the denoiser."""

from omnireuse.named.published import published_ratios

__all__ = ["published_ratios"]
