"""Eviction policies, one file each."""

from omnireuse.core.shared_encoder_cache.policies.base import EvictionPolicy
from omnireuse.core.shared_encoder_cache.policies.cost_aware import CostAware
from omnireuse.core.shared_encoder_cache.policies.lru import LRU
from omnireuse.core.shared_encoder_cache.policies.s3_fifo import S3FIFO
from omnireuse.core.shared_encoder_cache.policies.w_tiny_lfu import WTinyLFU
from omnireuse.registry import Registry

__all__ = ["LRU", "POLICIES", "S3FIFO", "CostAware", "EvictionPolicy", "WTinyLFU"]

POLICIES: Registry[type[EvictionPolicy]] = Registry(
    "omnireuse.eviction_policies", {"lru": LRU, "s3-fifo": S3FIFO, "w-tinylfu": WTinyLFU, "cost-aware": CostAware}
)
"""The package's own, and those of the entry points `omnireuse.eviction_policies`."""
