"""A run that has reused nothing says why, once for each reason, and what to change."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import omnireuse
from omnireuse import (
    EasyCache,
    ErrorControl,
    EveryNth,
    MagCache,
    ResidualDiff,
    SeaCache,
    Spread,
    Steps,
    TeaCache,
)
from tests.helpers.tiny import Tiny

ABOVE = {
    "rel_l1_thresh": {"policy": TeaCache(rel_l1_thresh=1e-9), "region": "blocks"},
    "threshold": {"policy": EasyCache(threshold=1e-9, warmup=2)},
    "threshold ": {"policy": SeaCache(threshold=1e-9)},
    "threshold  ": {"policy": MagCache(ratios=(1.0, *[1.5] * 5), threshold=1e-9), "region": "blocks"},
    "residual_diff_threshold": {"policy": ResidualDiff(residual_diff_threshold=1e-9), "region": "tail"},
    "residual_diff_threshold ": {
        "policy": ResidualDiff(residual_diff_threshold=1e-9, mask=[1, 0, 0, 0, 0, 1]),
        "region": "tail",
    },
    "tolerance": {"policy": ErrorControl(tolerance=1e-9), "forecaster": "polynomial"},
}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "omnireuse"]


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "omnireuse")


@pytest.mark.parametrize("named", sorted(ABOVE))
def test_measured_above_the_threshold_at_every_step(flux: Tiny, caplog: pytest.LogCaptureFixture, named: str) -> None:
    with omnireuse.enable(flux.pipe, **ABOVE[named]) as handle:
        flux.run()
        flux.run()
    assert handle.summary().reused_calls == 0
    measured = [event.measured for event in handle.events if event.measured is not None and event.reason == "policy"]
    (message,) = said(caplog)
    assert f"every step measured above {named.strip()}=1e-09; the smallest value was {min(measured):.3g}" in message
    assert f"give a {named.strip()} above that" in message


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (
            {"policy": ResidualDiff(max_warmup_steps=5), "region": "tail"},
            "max_warmup_steps makes the first 5 of 6 steps",
        ),
        ({"policy": EveryNth(every=2, warmup=6)}, "warmup makes the first 6 of 6 steps"),
        ({"policy": EasyCache(warmup=7)}, "warmup makes the first 7 of 6 steps"),
    ],
)
def test_a_warm_up_that_covers_the_run(
    flux: Tiny, caplog: pytest.LogCaptureFixture, choice: dict[str, Any], name: str
) -> None:
    with omnireuse.enable(flux.pipe, **choice):
        flux.run()
    (message,) = said(caplog)
    assert name in message
    assert "or take more steps" in message


@pytest.mark.parametrize("choice", [{"policy": "fixed"}, {"policy": Spread(num_computed=2)}])
def test_too_few_steps(flux: Tiny, caplog: pytest.LogCaptureFixture, choice: dict[str, Any]) -> None:
    with omnireuse.enable(flux.pipe, **choice):
        flux.run(steps=2)
        flux.run(steps=1)
    (message,) = said(caplog)
    assert "a run of 2 steps leaves none out" in message
    assert "take fewer steps instead" in message


def test_each_reason_is_said_once_for_a_handle(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    choice: dict[str, Any] = {"policy": ResidualDiff(residual_diff_threshold=1e-9), "region": "tail"}
    for _ in range(2):
        with omnireuse.enable(flux.pipe, **choice):
            for steps in (6, 3, 8, 3):
                flux.run(steps=steps)
    first, second, *others = said(caplog)
    assert "above residual_diff_threshold" in first
    assert "max_warmup_steps" in second
    assert others == [first, second]


@pytest.mark.parametrize(
    ("choice", "steps"),
    [
        ({"policy": "never"}, 6),
        ({"policy": Spread(speedup=1.0)}, 6),
        ({"policy": EveryNth(every=1)}, 6),
        ({"policy": Steps(steps=range(6))}, 6),
        ({"policy": "fixed"}, 6),
    ],
)
def test_what_computes_as_asked_or_reuses_is_silent(
    flux: Tiny, caplog: pytest.LogCaptureFixture, choice: dict[str, Any], steps: int
) -> None:
    with omnireuse.enable(flux.pipe, **choice):
        flux.run(steps=steps)
    assert said(caplog) == []


def test_a_run_that_is_broken_off_is_silent(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_pipe: Any, index: int, *_: Any) -> dict[str, Any]:
        if index == 0:
            raise KeyboardInterrupt
        return {}

    with omnireuse.enable(flux.pipe, policy="fixed"), pytest.raises(KeyboardInterrupt):
        flux.run(callback_on_step_end=fail)
    assert said(caplog) == []


def test_a_pipeline_that_never_calls_its_denoiser(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    class Idle:
        transformer, scheduler = flux.pipe.transformer, flux.pipe.scheduler

        def __call__(self) -> None:
            return

    pipe = Idle()
    with omnireuse.enable(pipe):
        pipe()
        pipe()
    (message,) = said(caplog)
    assert "nothing was reused: Idle finished without a call of the denoiser" in message
    caplog.clear()
    with omnireuse.enable(pipe, policy="never"):
        pipe()
    assert said(caplog) == []


def test_a_policy_that_reuses_nearly_all_gets_a_word(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with omnireuse.enable(flux.pipe, policy=EasyCache(threshold=1e9, warmup=1)):
        flux.run(steps=28)
        flux.run(steps=28)
    (message,) = said(caplog)
    assert message.startswith("nearly all was reused: EasyCache computed 3 of 28 steps; pictures of so few steps")
    caplog.clear()
    with omnireuse.enable(flux.pipe, policy=Spread(num_computed=2)):
        flux.run(steps=28)
    assert not said(caplog), "that was asked for"
