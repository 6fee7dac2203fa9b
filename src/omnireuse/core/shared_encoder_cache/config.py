"""How large a shared encoder cache is and how it forgets."""

from __future__ import annotations

import math
from dataclasses import dataclass

from omnireuse.core.shared_encoder_cache.policies import POLICIES
from omnireuse.errors import ConfigError, UnknownNameError, WrongTypeError

__all__ = ["SharedEncoderCacheConfig", "require_count"]


@dataclass(frozen=True, kw_only=True)
class SharedEncoderCacheConfig:
    """Budgets and forgetting.

    Args:
        max_embeds: capacity in encoder embeddings, ≥ 0.
        max_bytes: capacity in bytes beside it, ≥ 0; None for no second budget.
        policy: which unreferenced entry leaves first: lru, s3-fifo, w-tinylfu or cost-aware.
        ttl_seconds: how long an entry may stay unreferenced, > 0; None for as long as there is room.
    """

    max_embeds: int
    max_bytes: int | None = None
    policy: str = "lru"
    ttl_seconds: float | None = None

    def __post_init__(self) -> None:
        require_count("SharedEncoderCacheConfig(max_embeds)", self.max_embeds)
        if self.max_bytes is not None:
            require_count("SharedEncoderCacheConfig(max_bytes)", self.max_bytes)
        if self.policy not in POLICIES:
            raise UnknownNameError("eviction policy", self.policy, POLICIES)
        if self.ttl_seconds is not None and not (math.isfinite(self.ttl_seconds) and self.ttl_seconds > 0):
            raise ConfigError(
                f"SharedEncoderCacheConfig(ttl_seconds={self.ttl_seconds}): field must be finite and > 0, or None"
            )


def require_count(what: str, value: object) -> int:
    """Return `value` if it is an int ≥ 0, else raise the error that says so."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(f"{what} must be an int, got {value!r} of type {type(value).__name__}")
    if value < 0:
        raise ConfigError(f"{what} must be ≥ 0, got {value}")
    return value
