"""What TeaCache remembers of a branch."""

from omnireuse.policies.by_change import TeaCacheState

__all__ = ["TeaCacheState"]
