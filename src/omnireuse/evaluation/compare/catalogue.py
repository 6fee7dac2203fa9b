"""Every method that a comparison knows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from omnireuse.evaluation.compare.floors import FLOORS
from omnireuse.evaluation.compare.methods import Method, chosen
from omnireuse.evaluation.compare.ours import OURS, with_profiles
from omnireuse.evaluation.compare.peers_cache_dit import CACHE_DIT
from omnireuse.evaluation.compare.peers_diffusers import DIFFUSERS
from omnireuse.extras import check_extra, has_extra

__all__ = ["catalogue"]

logger = logging.getLogger("omnireuse")


def catalogue(profiles: Sequence[Path] = (), only: Iterable[str] = ()) -> list[Method]:
    """All methods, or those of these keys or families ("ours", "peer", "floor").

    Args:
        profiles: files that `omnireuse.calibrate` has written; each serves the cases that it was searched at.

    Raises:
        ConfigError: a file that is no profile.
        UnknownNameError: a key that no method has.
        MissingExtraError: a method of cache-dit is asked for by its key, and cache-dit is not installed. Methods of
            cache-dit that nobody asked for by key are left out then, with a warning.
    """
    only = list(only)
    methods = chosen((*FLOORS, *DIFFUSERS, *CACHE_DIT, *OURS, with_profiles(profiles)), only)
    if has_extra("cache-dit") or not any(method in CACHE_DIT for method in methods):
        return methods
    if any(method.key in only for method in CACHE_DIT):
        check_extra("the comparison with cache-dit", "cache-dit")
    logger.warning("cache-dit is left out, it is not installed; install it: pip install 'omnireuse[cache-dit]'")
    return [method for method in methods if method not in CACHE_DIT]
