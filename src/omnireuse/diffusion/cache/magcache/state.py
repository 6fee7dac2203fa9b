"""What MagCache remembers of a branch."""

from omnireuse.policies.mag_cache import MagCacheState

__all__ = ["MagCacheState"]
