"""The host tier of all workers, as the scheduler plans it: what enters, what leaves, and what all of them have."""

from __future__ import annotations

import logging
import sys
from collections import Counter

from omnireuse_engines.vllm.interface import EncoderKey, ItemTooLargeError, Lease
from omnireuse_engines.vllm.manager import SharedEncoderCacheManager
from omnireuse_engines.vllm.plans import Item, StepReport

__all__ = ["HostTier"]

logger = logging.getLogger("omnireuse")

_STEP = "step"  # the holder of all leases here: a host copy belongs to no request


class HostTier:
    """An output is present once all workers have said so, and one that a worker did not keep is dropped by all.

    Args:
        max_bytes: of each worker; 0 for no tier.
        counts: gets the events.
    """

    def __init__(self, max_bytes: int, counts: Counter[str]) -> None:
        self._places = SharedEncoderCacheManager(sys.maxsize, max_bytes=max_bytes)
        self._is_used, self._counts = max_bytes > 0, counts
        self._bytes_per_embed, self._num_keeps = 0.0, 0
        self._drops: list[EncoderKey] = []
        self._leases: dict[EncoderKey, Lease] = {}

    def has(self, item: Item) -> bool:
        """Whether all workers have it."""
        return self._places.is_ready(item.key)

    def loads(self, item: Item) -> bool:
        """Whether all workers have it, and load it now."""
        if not self._places.hold(item.key, _STEP, -1):
            return False
        self._places.release(_STEP, -1)
        return True

    def keeps(self, item: Item) -> bool:
        """Whether the workers are to keep an output that they do not have: there is room for it."""
        if not self._is_used or item.key in self._leases or self.has(item):
            return False
        num_bytes = round(self._bytes_per_embed * item.num_embeds)  # the workers report the true size
        self._num_keeps += 1
        try:
            lease = self._places.reserve(item.key, _STEP, self._num_keeps, item.num_embeds, num_bytes)
        except ItemTooLargeError:
            lease = None
        if lease is None:
            self._counts["no_room"] += 1
            return False
        self._leases[item.key] = lease
        return True

    def reported(self, report: StepReport, weights_epoch: int) -> None:
        """Follow the workers' reports.

        Args:
            weights_epoch: the present one; outputs of others were dropped by `reset`.
        """
        asked = report.kept.keys() | report.failed
        unknown = {key for key in asked if key.weights_epoch == weights_epoch} - self._leases.keys()
        if unknown:
            self._counts["reports_unknown"] += len(unknown)
            logger.error("the workers report encoder outputs that they were not asked to keep: %s", unknown)
        for key, num_bytes in report.kept.items():
            if key not in self._leases:
                continue
            lease = self._leases.pop(key)
            self._places.commit(lease, num_bytes=num_bytes)
            num_embeds = self._places.get_num_embeds(key)
            self._places.release(_STEP, lease.position)
            self._bytes_per_embed = max(self._bytes_per_embed, num_bytes / max(num_embeds or 1, 1))
        for key in report.failed & self._leases.keys():
            self._places.abort(self._leases.pop(key))
            self._drops.append(key)

    def reset(self) -> None:
        """Drop everything."""
        self._drops += self._places.reset()
        self._leases.clear()

    def take_drops(self) -> list[EncoderKey]:
        """The outputs that leave with the next step."""
        drops, self._drops = self._drops + self._places.drain_evicted(), []
        return drops

    def stats(self) -> dict[str, int]:
        """Its content on each worker, and outputs that are being saved."""
        host = self._places.stats()
        return {"host_entries": host["entries"], "host_bytes": host["bytes"], "saving": len(self._leases)}
