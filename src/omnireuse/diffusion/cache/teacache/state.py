"""What TeaCache accumulates between computed steps, for each branch of each run.

The policy defines it; signals and residuals belong to the run and are dropped with it.
"""

from __future__ import annotations

from omnireuse.diffusion.reuse.policies.tea_cache import TeaCacheState

__all__ = ["TeaCacheState"]
