"""Counters of prompt-embedding caches for Prometheus."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from omnireuse.diffusion.prompts.cache import PromptEmbedCache
from omnireuse.errors import ConfigError, MissingExtraError

__all__ = ["METRICS", "PromptCacheCollector"]

_PREFIX = "omnireuse_prompt_cache"

METRICS = {
    f"{_PREFIX}_hits_total": "Calls served without an encode of their own",
    f"{_PREFIX}_misses_total": "Encodes",
    f"{_PREFIX}_bypassed_total": "Calls that no key can be made for, by reason",
    f"{_PREFIX}_coalesced_total": "Hits that waited for another call's encode",
    f"{_PREFIX}_outside_hits_total": "Hits that the outer store served",
    f"{_PREFIX}_row_hits_total": "Prompts of lists that needed no encode",
    f"{_PREFIX}_row_misses_total": "Prompts of lists that were encoded",
    f"{_PREFIX}_mutated_total": "Entries dropped because a consumer changed them in place",
    f"{_PREFIX}_outdated_total": "Results not stored because the encoders changed meanwhile",
    f"{_PREFIX}_unplaced_total": "Hits that could not be moved to the device of their call",
    f"{_PREFIX}_evictions_total": "Entries dropped for room",
    f"{_PREFIX}_refused_total": "Results larger than the byte budget",
    f"{_PREFIX}_expired_total": "Entries dropped for their age",
    f"{_PREFIX}_entries": "Entries held",
    f"{_PREFIX}_bytes": "Bytes of tensor storage held",
    f"{_PREFIX}_device_bytes": "Bytes held on an accelerator",
    f"{_PREFIX}_tier_events_total": "What happened in an outer tier, by tier and event",
}
"""Every metric by its name in the exposition, with its meaning."""


class PromptCacheCollector:
    """Reads the counters when Prometheus asks; nothing is counted twice and a hit costs nothing more.

    Register it: ``prometheus_client.REGISTRY.register(PromptCacheCollector().add("flux", cache))``. Caches are held
    weakly.

    Raises:
        MissingExtraError: ``prometheus-client`` is not installed.
    """

    def __init__(self) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise MissingExtraError("the Prometheus collector", "metrics") from error
        self._core: Any = core
        self._caches: dict[str, weakref.ref[PromptEmbedCache]] = {}

    def add(self, model: str, cache: PromptEmbedCache) -> PromptCacheCollector:
        """Report ``cache`` under the label ``model``.

        Raises:
            ConfigError: the label is taken by another cache that is alive.
        """
        known = self._caches.get(model)
        if known is not None and known() not in (None, cache):
            raise ConfigError(f"PromptCacheCollector.add(model={model!r}): field must be unique, got it twice")
        self._caches[model] = weakref.ref(cache)
        return self

    def collect(self) -> Iterator[Any]:
        """The metric families, as ``prometheus_client`` wants them."""
        families = {name: self._family(name, text) for name, text in METRICS.items()}
        for model, ref in self._caches.items():
            cache = ref()
            if cache is None:
                continue
            details = cache.details()
            held = {"entries": details["size"], "bytes": details["num_bytes"], "device_bytes": cache.device_bytes()}
            for name, family in families.items():
                short = name.removeprefix(f"{_PREFIX}_").removesuffix("_total")
                if short == "bypassed":
                    for key, value in details.items():
                        if key.startswith("bypassed_"):
                            family.add_metric([model, key.removeprefix("bypassed_")], value)
                elif short == "tier_events":
                    for tier, event, value in _tier_events(cache):
                        family.add_metric([model, tier, event], value)
                else:
                    family.add_metric([model], held[short] if short in held else details[short])
        yield from families.values()

    def _family(self, name: str, text: str) -> Any:
        labels = {"bypassed_total": ["model", "reason"], "tier_events_total": ["model", "tier", "event"]}
        names = labels.get(name.removeprefix(f"{_PREFIX}_"), ["model"])
        is_counter = name.endswith("_total")
        kind = self._core.CounterMetricFamily if is_counter else self._core.GaugeMetricFamily
        return kind(name.removesuffix("_total"), text, labels=names)


def _tier_events(cache: PromptEmbedCache) -> Iterator[tuple[str, str, int]]:
    outside: Any = cache.options.outside
    for tier in getattr(outside, "tiers", (outside,)):
        if tier is not None:
            for event, count in sorted(tier.counts.items()):
                yield tier.name, event, count
