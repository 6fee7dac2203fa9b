"""Counters of modulation caches for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from omnireuse.modulation.cache import ModulationCache
from omnireuse.summary.prometheus import Collector

__all__ = ["METRICS", "ModulationCollector"]

_PREFIX = "omnireuse_modulation"

METRICS = {
    f"{_PREFIX}_reused_total": "Calls of projections that had a row",
    f"{_PREFIX}_computed_total": "Calls of projections that had none",
    f"{_PREFIX}_brought_in_total": "Times that weights which were away came in for a moment",
    f"{_PREFIX}_reads_total": "Small inputs that were read",
    f"{_PREFIX}_changed_total": "Projections whose rows were dropped because their weights changed",
    f"{_PREFIX}_saved_total": "Records written to the outer store",
    f"{_PREFIX}_evictions_total": "Rows dropped for room",
    f"{_PREFIX}_bypassed_total": "Calls of projections past the cache, by reason",
    f"{_PREFIX}_rows": "Rows held",
    f"{_PREFIX}_num_bytes": "Bytes of rows held",
    f"{_PREFIX}_weight_bytes": "Bytes of the weights of projections with a table",
    f"{_PREFIX}_released_bytes": "Bytes of those that have left the device",
}
"""Every metric by its name in the exposition, with its meaning."""


class ModulationCollector(Collector[ModulationCache]):
    """Reports the counters of modulation caches; see :class:`Collector`."""

    metrics: ClassVar[Mapping[str, str]] = METRICS
    labels: ClassVar[Mapping[str, tuple[str, ...]]] = {f"{_PREFIX}_bypassed_total": ("reason",)}

    def samples(self, source: ModulationCache) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """The counters of ``source.details()``."""
        details = source.details()
        for name in self.metrics.keys() - self.labels.keys():
            yield name, (), details[name.removeprefix(f"{_PREFIX}_").removesuffix("_total")]
        for name, count in details.items():
            if name.startswith("bypassed_"):
                yield f"{_PREFIX}_bypassed_total", (name.removeprefix("bypassed_"),), count
