"""A forecast of another shape, or one that is not finite, is an error that names the forecaster."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse.errors import ConfigError, StateError
from tests.helpers.tiny import Tiny


class _Memory(omnireuse.Memory):
    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.value: torch.Tensor | None = None

    @property
    def primed(self) -> bool:
        return self.value is not None

    def observe(self, coordinate: float, value: torch.Tensor) -> None:
        self.value = value

    def predict(self, coordinate: float) -> torch.Tensor:
        assert self.value is not None
        return self.value * torch.nan if self.fault == "nan" else self.value[..., :1]


@dataclass(frozen=True)
class Faulty(omnireuse.Forecaster):
    fault: str

    def start(self, branch: int = 0) -> _Memory:
        return _Memory(self.fault)


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
def test_a_forecast_of_another_shape_is_refused(flux: Tiny, region: Any) -> None:
    message = r"Faulty: a forecast must have the shape of the values that were observed, \(1, \d+, \d+\), got"
    omnireuse.enable(flux.pipe, policy="fixed", forecaster=Faulty("shape"), region=region)
    with pytest.raises(ConfigError, match=message):
        flux.run()


@pytest.mark.parametrize("region", ["step", "call", "blocks", "tail"])
def test_a_run_with_a_forecast_that_is_not_finite_ends_in_an_error(flux: Tiny, region: Any) -> None:
    handle = omnireuse.enable(flux.pipe, policy="fixed", forecaster=Faulty("nan"), region=region)
    with pytest.raises(StateError, match="NaN or infinite from step 1 on, which Faulty forecast"):
        flux.run()
    summary = handle.summary()
    assert (summary.runs, summary.broken, summary.computed_steps) == (1, 1, 0.0)
    assert "1 run ended in latents that are NaN or infinite" in str(summary)
    assert "steps computed (" not in str(summary)


def test_a_model_that_gives_nan_by_itself_is_a_warning(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "omnireuse")
    with torch.no_grad():
        flux.pipe.transformer.proj_out.bias.fill_(torch.nan)
    plain = flux.run()
    with omnireuse.enable(flux.pipe, policy="fixed") as handle:
        assert torch.equal(flux.run().isnan(), plain.isnan())
    assert handle.summary().broken == 1
    assert "NaN or infinite from step 0 on, which was computed and not forecast" in caplog.text


def test_a_healthy_run_is_not_counted_as_broken(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, policy="fixed") as handle:
        flux.run()
    assert (handle.summary().broken, handle.summary().aborted) == (0, 0)
