"""The state of MagCache between computed steps, for each branch of each run."""

from __future__ import annotations

from omnireuse.diffusion.reuse.policies.mag_cache import MagCacheState

__all__ = ["MagCacheState"]
