"""The optional dependencies, by the extra that installs them."""

from __future__ import annotations

from importlib.util import find_spec

from omnireuse.errors import MissingExtraError

__all__ = ["check_extra", "has_extra"]

MODULES = {
    "lab": ("omnireuse_lab",),
    "engines": ("omnireuse_engines",),
    "cache-dit": ("cache_dit",),
    "redis": ("redis",),
    "metrics": ("prometheus_client",),
    "serve": ("fastapi",),
}
"""The modules of each extra."""


def has_extra(extra: str) -> bool:
    """Whether all modules of an extra can be imported; imports nothing."""
    return all(find_spec(module) is not None for module in MODULES[extra])


def check_extra(feature: str, extra: str) -> None:
    """Find out before long work whether an extra is installed; imports nothing."""
    if not has_extra(extra):
        raise MissingExtraError(feature, extra)
