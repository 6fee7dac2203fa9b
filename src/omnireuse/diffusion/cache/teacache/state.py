"""What TeaCache remembers of a branch."""

from omnireuse.policies.tea_cache import TeaCacheState

__all__ = ["TeaCacheState"]
