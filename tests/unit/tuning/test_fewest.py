"""A tolerance that is tuned: the number of computed steps that keeps it, from trials on the measured pictures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import omnireuse
from omnireuse.tuning.budget import JUDGED
from omnireuse.tuning.fewest import SLOPE, bounds, count_for
from tests.helpers import tiny
from tests.helpers.tiny import Tiny

STEPS, TOLERANCE = 30, 0.12


@pytest.fixture(autouse=True)
def _tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIREUSE_TUNE", "1")


@pytest.fixture
def flux() -> Tiny:
    """Without guidance: with it, a random model bends too much for plans of three pictures."""
    guided = tiny.flux()
    return Tiny(guided.pipe, lambda **call: guided.inputs(**call | {"guided": False}))


def error(found: torch.Tensor, full: torch.Tensor) -> float:
    return float((found - full).abs().sum() / full.abs().sum())


@given(
    first=st.integers(4, 40),
    slope=st.floats(SLOPE, 60.0),
    level=st.floats(-30.0, 30.0),
)
def test_the_search_ends_beside_the_tolerance(first: int, slope: float, level: float) -> None:
    """Where the error falls with the number of computed steps, trials are few and find the smallest that keeps it."""

    def of(count: int) -> float:
        return level - slope * math.log2(count / first)

    known = {first: of(first)}
    while (count := count_for(known)) not in known:
        known[count] = of(count)
    missed, kept = bounds(known)
    assert len(known) <= 8
    assert kept is not None
    assert of(kept) <= 0
    assert kept == 1 or of(kept - 1) > -1e-6
    assert missed is None or missed < kept


def test_a_larger_number_that_misses_is_believed() -> None:
    assert bounds({10: -1.0, 12: 2.0, 14: -3.0}) == (12, 14)
    assert bounds({10: 1.0}) == (10, None)
    assert bounds({10: -1.0, 8: -0.5}) == (None, 8)


def pictures(flux: Tiny, count: int) -> list[torch.Tensor]:
    return [flux.run(steps=STEPS, seed=seed) for seed in range(count)]


def computed(handle: omnireuse.Handle) -> list[int]:
    """The steps that the latest run has computed."""
    latest = max(event.run for event in handle.events)
    return sorted({event.step for event in handle.events if event.run == latest and not event.reused})


def test_a_tolerance_is_tuned_and_then_kept_with_a_fixed_schedule(flux: Tiny) -> None:
    full, schedules = pictures(flux, JUDGED + 3), []
    with omnireuse.enable(flux.pipe, tolerance=TOLERANCE) as handle:
        for seed in range(JUDGED):
            assert torch.equal(flux.run(steps=STEPS, seed=seed), full[seed])
        assert handle.tuning.state == "ready"
        assert handle.tuning.pictures == JUDGED
        assert f"of {STEPS} steps computed" in handle.tuning.reason
        assert handle.tuning.expected is not None
        assert 0 < handle.tuning.expected <= TOLERANCE
        # The trial runs together take no more work than the pictures.
        assert JUDGED < handle.tuning.runs <= 2 * JUDGED
        for seed in range(JUDGED, JUDGED + 3):
            assert error(flux.run(steps=STEPS, seed=seed), full[seed]) <= TOLERANCE
            schedules.append(computed(handle))
    assert schedules[0] == schedules[1] == schedules[2]
    assert 1 < len(schedules[0]) < STEPS


def test_another_process_finds_the_plan_of_its_tolerance_alone(flux: Tiny) -> None:
    found = []
    for count in (JUDGED + 1, 1):
        with omnireuse.enable(flux.pipe, tolerance=TOLERANCE) as handle:
            for seed in range(JUDGED + 1 - count, JUDGED + 1):
                last = flux.run(steps=STEPS, seed=seed)
            found.append((handle.tuning.reason, handle.tuning.path, last))
    # The second handle measures nothing, and makes the same picture.
    assert found[0][:2] == found[1][:2]
    assert torch.equal(found[0][2], found[1][2])
    for other in ({"tolerance": 0.15}, {"computed_steps": 15}):
        with omnireuse.enable(flux.pipe, **other) as handle:
            flux.run(steps=STEPS)
            assert handle.tuning.state == "measuring"


@pytest.mark.slow
def test_a_second_measurement_comes_to_the_same_plan(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []
    for folder in ("one", "other"):
        monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / folder))
        with omnireuse.enable(flux.pipe, tolerance=TOLERANCE) as handle:
            last = pictures(flux, JUDGED + 1)[-1]
            found.append((handle.tuning.reason, last))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.slow
def test_a_smaller_tolerance_computes_no_fewer_steps(flux: Tiny) -> None:
    counts = []
    for tolerance in (0.02, 0.5):
        with omnireuse.enable(flux.pipe, tolerance=tolerance) as handle:
            pictures(flux, JUDGED + 1)
            counts.append(len(computed(handle)))
    assert counts[0] > counts[1]


def test_a_tolerance_that_no_plan_keeps_stays_with_the_untuned_rule(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, tolerance=1e-6) as handle:
        made = pictures(flux, JUDGED + 1)[-1]
        assert handle.tuning.state == "ready"
        assert handle.tuning.expected is None
        assert "no plan of fewer steps was seen to keep the tolerance" in handle.tuning.reason
    with omnireuse.enable(flux.pipe, tolerance=1e-6, tune=False) as handle:
        assert torch.equal(flux.run(steps=STEPS, seed=JUDGED), made)
        assert handle.tuning.state == "off"


def test_runs_too_short_to_tune_follow_the_untuned_rule(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, tolerance=0.2) as handle:
        flux.run(steps=3)
        assert handle.tuning.state == "off"
        assert "every step of a run of 3 is computed" in handle.tuning.reason
