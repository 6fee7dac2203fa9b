"""HiCache++: the library `hicache-pp` forecasts the velocity after guidance, by Hermite polynomials or by modes.

The library gives state and forecasts and leaves the loop to its user, here our region "step".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

import omnireuse
from omnireuse_lab.compare.methods.base import Method, Setting, Subject, reuse

__all__ = ["HICACHE"]

WARMUP = 4


class _State(omnireuse.Memory):
    """The library's state of one run; coordinates are step numbers."""

    def __init__(self, **options: Any) -> None:
        import hicache_pp

        self._library = hicache_pp
        self._state = hicache_pp.hicache_init(**options)

    @property
    def primed(self) -> bool:
        return bool(self._state["derivatives"])

    def transformed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> _State:
        twin = copy.copy(self)
        # Fits are made again from the snapshots.
        kept = {name: value for name, value in self._state.items() if not name.startswith("_")}
        for name in ("derivatives", "prev_derivatives"):
            kept[name] = {order: change(value) for order, value in kept[name].items()}
        kept["dmd_snapshots"] = [(step, change(value)) for step, value in kept["dmd_snapshots"]]
        kept["activated_steps"] = list(kept["activated_steps"])
        twin._state = kept
        return twin

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        # What `hicache_decide` records of a computed step; the schedule is known before the run.
        self._state["step"] = round(coordinate)
        self._state["activated_steps"].append(round(coordinate))
        self._library.hicache_update_derivatives(self._state, value)
        self._library.dmd_update_snapshots(self._state, value)

    def predict(self, coordinate: float) -> torch.Tensor:
        self._state["step"] = round(coordinate)
        forecast = {
            "hermite": self._library.hicache_forecast,
            "dmd": self._library.dmd_forecast_state,
            "auto": self._library.auto_forecast_state,
        }[self._state["backend"]]
        value: torch.Tensor = forecast(self._state)
        return value


@dataclass(frozen=True, kw_only=True)
class _HiCache(omnireuse.Forecaster):
    num_steps: int
    interval: int
    max_order: int
    backend: str

    def start(self, branch: int = 0) -> _State:
        return _State(**vars(self), first_enhance=WARMUP, end_enhance=self.num_steps - 1)


def _grid(subject: Subject) -> Iterator[Setting]:
    import_module("hicache_pp")  # if it is missing the method fails as a whole

    for backend, order in (("hermite", 1), ("hermite", 2), ("dmd", 1), ("auto", 1)):
        for interval in (2, 3, 4, 5):
            chosen: dict[str, Any] = {"interval": interval, "max_order": order, "backend": backend}
            options = {
                "policy": omnireuse.EveryNth(every=interval, warmup=WARMUP),
                "forecaster": _HiCache(num_steps=subject.workload.steps, **chosen),
                "region": "step",
                "prediction_target": "output",
                "axis": "steps",
            }
            yield reuse("hicache_init", options, first_enhance=WARMUP, **chosen)


HICACHE = Method(key="hicache-pp", name="HiCache++", family="peer", grid=_grid)
