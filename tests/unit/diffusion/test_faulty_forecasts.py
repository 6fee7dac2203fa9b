"""A forecast of another shape, or one that is not finite, is an error that names the forecaster."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import EveryNth
from omnireuse.errors import ConfigError, StateError
from omnireuse.loop.batch import Row, observe_batch, predict_batch
from omnireuse.loop.generation import Generation, layout_of
from omnireuse.loop.strategy import Strategy
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


def test_a_row_whose_forecast_fails_computes_on_and_leaves_the_others_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def made(forecaster: Any, count: int) -> list[Any]:
        strategy = Strategy(policy=EveryNth(every=2), forecaster=forecaster, prediction_target="output")
        return [Generation(strategy, total=6, number=number) for number in range(count)]

    def step(generations: list[Any], number: int) -> list[torch.Tensor | None]:
        latents, rows = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(number)), []
        for each in generations:
            choice = each.decide(layout=layout_of(latents))
            output = None if choice.reuse else latents.sin()
            rows.append(Row(generation=each, choice=choice, sample=latents, output=output))
        reusing = [row for row in rows if row.choice.reuse]
        computing = [row for row in rows if not row.choice.reuse]
        found = dict(zip(map(id, reusing), predict_batch(reusing), strict=True))
        found |= zip(map(id, computing), observe_batch(computing), strict=True)
        for each in generations:
            each.advance()
        return [found[id(row)] for row in rows]

    alone, together = made(omnireuse.Hold(), 2), [*made(omnireuse.Hold(), 2), *made(Faulty("shape"), 1)]
    for number in range(6):
        expected, (*got, faulty) = step(alone, number), step(together, number)
        assert all(torch.equal(*pair) for pair in zip(expected, got, strict=True))
        assert (faulty is None) == (number == 1)
    assert (together[0].failure, together[2].decide().reason) == ("", "failed")
    assert together[2].kept_bytes == 0
    assert caplog.text.count("generation 0 computes every further step: its forecast failed: ConfigError: Faulty") == 1


def test_an_output_that_needs_a_gradient_is_the_callers_fault() -> None:
    generation = Generation(Strategy(policy=EveryNth(every=2)), total=4)
    output = torch.ones(1, 4, requires_grad=True)
    with pytest.raises(StateError, match="gradient"):
        observe_batch([Row(generation=generation, choice=generation.decide(), sample=torch.ones(1, 4), output=output)])


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
