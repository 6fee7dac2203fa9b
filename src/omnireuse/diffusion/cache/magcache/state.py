"""What MagCache accumulates between computed steps, for each branch of each run.

The policy defines it; the residuals themselves belong to the run and are dropped with it.
"""

from __future__ import annotations

from omnireuse.diffusion.reuse.policies.mag_cache import MagCacheState

__all__ = ["MagCacheState"]
