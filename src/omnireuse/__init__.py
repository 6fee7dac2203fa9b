"""Reuse for generative multimodal inference: do not compute what is already known."""

__version__ = "0.1.0"

__all__ = ["__version__"]
