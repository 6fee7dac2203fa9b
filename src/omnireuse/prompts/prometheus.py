"""Counters of prompt-embedding caches for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from omnireuse.prompts.cache import PromptEmbedCache
from omnireuse.summary.prometheus import Collector

__all__ = ["METRICS", "PromptCacheCollector"]

_PREFIX = "omnireuse_prompt_cache"

METRICS = {
    f"{_PREFIX}_hits_total": "Calls served without an encode of their own",
    f"{_PREFIX}_misses_total": "Encodes",
    f"{_PREFIX}_bypassed_total": "Calls that no key can be made for, by reason",
    f"{_PREFIX}_coalesced_total": "Hits that waited for another call's encode",
    f"{_PREFIX}_outside_hits_total": "Hits that the outer store served",
    f"{_PREFIX}_mutated_total": "Entries dropped because a consumer changed them in place",
    f"{_PREFIX}_outdated_total": "Results not stored because what they read changed meanwhile",
    f"{_PREFIX}_evictions_total": "Entries dropped for room",
    f"{_PREFIX}_refused_total": "Results larger than the byte budget",
    f"{_PREFIX}_entries": "Entries held",
    f"{_PREFIX}_bytes": "Bytes of tensor storage held",
    f"{_PREFIX}_device_bytes": "Bytes held on an accelerator",
    f"{_PREFIX}_tier_events_total": "What happened in an outer tier, by tier and event",
}
"""Every metric by its name in the exposition, with its meaning."""


class PromptCacheCollector(Collector[PromptEmbedCache]):
    """Reports the counters of prompt-embedding caches; see :class:`Collector`."""

    metrics: ClassVar[Mapping[str, str]] = METRICS
    labels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        f"{_PREFIX}_bypassed_total": ("reason",),
        f"{_PREFIX}_tier_events_total": ("tier", "event"),
    }

    def samples(self, source: PromptEmbedCache) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """The counters of ``source.details()`` and of its outer tiers."""
        details = source.details()
        details |= {"entries": details["size"], "bytes": details["num_bytes"], "device_bytes": source.device_bytes()}
        for name in self.metrics.keys() - self.labels.keys():
            yield name, (), details[name.removeprefix(f"{_PREFIX}_").removesuffix("_total")]
        for reason, count in sorted(source.bypassed_by.items()):
            yield f"{_PREFIX}_bypassed_total", (reason,), count
        outside: Any = source.options.outside
        for tier in getattr(outside, "tiers", () if outside is None else (outside,)):
            for event, count in sorted(tier.counts.items()):
                yield f"{_PREFIX}_tier_events_total", (tier.name, event), count
