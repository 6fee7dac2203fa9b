"""The common parts of the Prometheus collectors: sources by label, and the metric families."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from omnireuse.errors import ConfigError, MissingExtraError

__all__ = ["Collector"]

T = TypeVar("T")


class Collector(ABC, Generic[T]):
    """Reads counters when Prometheus asks; nothing is counted twice and the hot path costs nothing more.

    Register it: ``prometheus_client.REGISTRY.register(collector.add("flux", source))``. Sources are held weakly.

    Raises:
        MissingExtraError: ``prometheus-client`` is not installed.
    """

    metrics: ClassVar[Mapping[str, str]]
    """Every metric by its name in the exposition, with its meaning; counters end in ``_total``."""

    labels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Labels beside ``model``, of the metrics that have more."""

    def __init__(self) -> None:
        try:
            from prometheus_client import core
        except ImportError as error:
            raise MissingExtraError("the Prometheus collector", "metrics") from error
        self._core: Any = core
        self._sources: dict[str, weakref.ref[Any]] = {}

    def add(self, model: str, source: T) -> Collector[T]:
        """Report ``source`` under the label ``model``.

        Raises:
            ConfigError: the label is taken by another source that is alive.
        """
        known = self._sources.get(model)
        if known is not None and known() not in (None, source):
            raise ConfigError(f"{type(self).__name__}.add(model={model!r}): field must be unique, got it twice")
        self._sources[model] = weakref.ref(source)
        return self

    def collect(self) -> Iterator[Any]:
        """The metric families, as ``prometheus_client`` wants them."""
        families = {name: self._family(name) for name in self.metrics}
        for model, ref in self._sources.items():
            source = ref()
            if source is None:
                continue
            for name, more, value in self.samples(source):
                families[name].add_metric([model, *more], value)
        yield from families.values()

    @abstractmethod
    def samples(self, source: T) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Name, further label values and value of everything that ``source`` counts."""

    def _family(self, name: str) -> Any:
        is_counter = name.endswith("_total")
        kind = self._core.CounterMetricFamily if is_counter else self._core.GaugeMetricFamily
        labels = ["model", *self.labels.get(name, ())]
        return kind(name.removesuffix("_total"), self.metrics[name], labels=labels)
