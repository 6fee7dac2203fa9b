"""What Prometheus collectors have in common, and the collector of the decisions of step reuse."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from omnireuse.errors import ConfigError, MissingExtraError
from omnireuse.summary.summary import Summary

__all__ = ["METRICS", "Collector", "StepReuseCollector"]

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


_PREFIX = "omnireuse_step_reuse"

METRICS = {
    f"{_PREFIX}_runs_total": "Generations with at least one decision",
    f"{_PREFIX}_steps_total": "Denoising steps",
    f"{_PREFIX}_decisions_total": "Decisions, by strategy, by what was done (computed, reused) and by who decided",
    f"{_PREFIX}_calls_outside_total": "Denoiser calls that belonged to no run and were passed on",
    f"{_PREFIX}_fallbacks_total": "Fallbacks, by strategy and by what reuse went on with",
    f"{_PREFIX}_host_seconds_total": "Host time of decisions and forecasts",
    f"{_PREFIX}_step_ratio": "Decisions divided by computed ones: what reuse can give at most",
    f"{_PREFIX}_forecast_error": "Mean relative L1 error of the forecasts that could be compared with the truth",
    f"{_PREFIX}_audit_error": "Largest relative L1 error of the final latents among the latest audits",
    f"{_PREFIX}_audited_pictures": "Pictures among the latest audits",
    f"{_PREFIX}_audits_broken": "Pictures among the latest audits beyond the tolerance",
    f"{_PREFIX}_tuning_pictures": "Pictures measured for the configuration of the latest run",
    f"{_PREFIX}_tuning_runs": "Work of measuring it, pictures and trial runs, in full runs",
    f"{_PREFIX}_tuning_state": "1 for the state of its tuning: off, waiting, measuring, ready or failed",
    f"{_PREFIX}_kept_bytes": "Most bytes of tensors that one run held",
}
"""Every metric by its name in the exposition, with its meaning."""


class Summarized(Protocol):
    """What is reported: the handle of :func:`omnireuse.enable`, or another object with a summary."""

    def summary(self) -> Summary: ...


class StepReuseCollector(Collector[Summarized]):
    """Reports the summary of each handle of :func:`omnireuse.enable`; see :class:`Collector`."""

    metrics: ClassVar[Mapping[str, str]] = METRICS
    labels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        f"{_PREFIX}_decisions_total": ("strategy", "action", "reason"),
        f"{_PREFIX}_fallbacks_total": ("strategy", "to"),
        f"{_PREFIX}_tuning_state": ("state",),
    }

    def samples(self, source: Summarized) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """The counters of ``source.summary()``."""
        summary = source.summary()
        errors = [error for audit in summary.audits for error in audit.errors]
        values = {
            "runs_total": summary.runs,
            "steps_total": summary.steps,
            "calls_outside_total": summary.calls_outside,
            "host_seconds_total": summary.host_seconds * summary.calls,
            "step_ratio": summary.step_ratio,
            "forecast_error": summary.mean_error,
            "audit_error": max(errors, default=None),
            "audited_pictures": len(errors),
            "audits_broken": sum(audit.broken for audit in summary.audits),
            "kept_bytes": summary.kept_bytes,
        }
        for name, value in values.items():
            if value is not None:
                yield f"{_PREFIX}_{name}", (), value
        if (tuning := summary.tuning) is not None:
            yield f"{_PREFIX}_tuning_pictures", (), tuning.pictures
            yield f"{_PREFIX}_tuning_runs", (), tuning.runs
            yield f"{_PREFIX}_tuning_state", (tuning.state,), 1
        for words, count in sorted(summary.reasons.items()):
            action, reason = words.rstrip(")").split(" (", 1)
            yield f"{_PREFIX}_decisions_total", (summary.name, action, reason), count
        for what, count in summary.fallbacks.items():
            yield f"{_PREFIX}_fallbacks_total", (summary.name, what), count
