"""Every method that a comparison knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from omnireuse.compare.floors import FLOORS
from omnireuse.compare.methods import Method, chosen
from omnireuse.compare.ours import OURS, with_profiles
from omnireuse.compare.peers_cache_dit import CACHE_DIT
from omnireuse.compare.peers_diffusers import DIFFUSERS

__all__ = ["catalogue"]


def catalogue(profiles: Sequence[Path] = (), only: Iterable[str] = ()) -> list[Method]:
    """All methods, or those of these keys or families ("ours", "peer", "floor").

    Args:
        profiles: files that `omnireuse.calibrate` has written; each serves the cases that it was searched at.

    Raises:
        ConfigError: a file that is no profile.
        UnknownNameError: a key that no method has.
    """
    return chosen((*FLOORS, *DIFFUSERS, *CACHE_DIT, *OURS, with_profiles(profiles)), only)
