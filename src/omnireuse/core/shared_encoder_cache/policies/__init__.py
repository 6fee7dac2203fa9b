"""Which unreferenced entry leaves first: one file a policy, none of them knows what an entry is."""

from omnireuse.core.shared_encoder_cache.policies.base import EvictionPolicy
from omnireuse.core.shared_encoder_cache.policies.cost_aware import CostAware
from omnireuse.core.shared_encoder_cache.policies.lru import LRU
from omnireuse.core.shared_encoder_cache.policies.s3_fifo import S3FIFO
from omnireuse.core.shared_encoder_cache.policies.w_tiny_lfu import WTinyLFU
from omnireuse.errors import UnknownNameError
from omnireuse.registry import Registry

__all__ = ["LRU", "POLICIES", "S3FIFO", "CostAware", "EvictionPolicy", "WTinyLFU", "make_policy"]

POLICIES: Registry[type[EvictionPolicy]] = Registry(
    "omnireuse.eviction_policies", {"lru": LRU, "s3-fifo": S3FIFO, "w-tinylfu": WTinyLFU, "cost-aware": CostAware}
)
"""The package's own, and those of the entry points `omnireuse.eviction_policies`."""


def make_policy(name: str) -> EvictionPolicy:
    """Make a policy by name.

    Raises:
        UnknownNameError: no policy of that name.
    """
    if name not in POLICIES:
        raise UnknownNameError("eviction policy", name, POLICIES)
    return POLICIES[name]()
