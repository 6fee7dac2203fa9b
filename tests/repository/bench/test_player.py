"""What the benchmarks' player holds pictures against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import omnireuse
from bench._player import Player
from omnireuse.tuning.tuner import Tuner


class Played(Player):
    """Its pictures are black, with reuse grey."""

    is_reusing = False

    def __init__(self) -> None:
        self.pipeline, self.steps, self.judged, self._full = self, 4, range(2), {}

    def run(self, places: Any = None, steps: Any = None, **_: Any) -> Any:
        return np.full((2, 4, 4, 3), 0.1 * self.is_reusing)


@contextmanager
def enable(player: Played, **_: Any) -> Iterator[Any]:
    player.is_reusing = True
    tuning = SimpleNamespace(state="ready", runs=1.0, expected=0.1, reason="")
    tuner = SimpleNamespace(measure_all=lambda: None)
    yield SimpleNamespace(events=[], tuning=tuning, extension={Tuner: tuner}.get)
    player.is_reusing = False


@pytest.mark.parametrize("method", ["untuned", "hold", "tuned 2"])
def test_the_full_run_is_made_without_reuse(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omnireuse, "enable", enable)
    found = Played().by(method, 2, range(2 if method == "tuned 2" else 0))
    assert found["each"] == [pytest.approx(20.0)] * 2
