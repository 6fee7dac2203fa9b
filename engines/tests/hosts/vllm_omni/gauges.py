"""What is kept in a server's process, among its own metrics: a plugin of the tests."""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakSet

from engines.tests.hosts.keeping import bytes_of_tensors, live_generations

_runners: WeakSet[Any] = WeakSet()


def register() -> None:
    """Announce the gauges; vllm-omni calls this once in each process."""
    from prometheus_client import Gauge
    from vllm_omni.diffusion.worker.diffusion_model_runner import DiffusionModelRunner

    make = DiffusionModelRunner.__init__

    @functools.wraps(make)
    def remember(self: Any, *args: Any, **kwargs: Any) -> None:
        _runners.add(self)
        make(self, *args, **kwargs)

    DiffusionModelRunner.__init__ = remember

    for count in (request_states, live_generations, bytes_of_tensors):
        Gauge(f"test_{count.__name__}", "Of the tests").set_function(count)


def request_states() -> int:
    """States of requests in vllm-omni's runners."""
    return sum(len(each.state_cache) for each in _runners)
