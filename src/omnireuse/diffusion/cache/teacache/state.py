"""The state of TeaCache between computed steps, for each branch of each run."""

from __future__ import annotations

from omnireuse.diffusion.reuse.policies.tea_cache import TeaCacheState

__all__ = ["TeaCacheState"]
