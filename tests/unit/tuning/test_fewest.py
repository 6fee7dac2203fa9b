"""A tolerance that is tuned: the number of computed steps that keeps it, from trials on the measured pictures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import omnireuse
from omnireuse.tuning.fewest import SLOPE, bounds, count_for, excess, shortfall
from tests.helpers import tiny
from tests.helpers.tiny import Tiny

STEPS, TOLERANCE = 30, 0.1

errors = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5)


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


@given(errors=errors, tolerance=st.floats(0.001, 0.9), factor=st.floats(1.01, 3.0))
def test_what_exceeds_grows_with_the_errors_and_falls_with_the_tolerance(
    errors: list[float], tolerance: float, factor: float
) -> None:
    found = excess(errors, tolerance)
    # What is kept has a margin above the mean.
    if found <= 0:
        assert math.prod(errors) ** (1 / len(errors)) <= tolerance
    assert excess([error * factor for error in errors], tolerance) == pytest.approx(found + 20 * math.log10(factor))
    assert excess(errors, tolerance * factor) == pytest.approx(found - 20 * math.log10(factor))


def test_more_pictures_that_are_alike_need_less_margin() -> None:
    margins = [excess([0.01] * count, 0.01) for count in (1, 2, 3, 10)]
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] > 0


@given(closeness=st.lists(st.floats(0, 100), min_size=1, max_size=5), quality=st.floats(1, 100))
def test_a_shortfall_grows_with_the_quality_and_has_a_margin(closeness: list[float], quality: float) -> None:
    found = shortfall(closeness, quality)
    if found <= 0:
        assert sorted(closeness)[len(closeness) // 2] > quality
    assert shortfall(closeness, quality + 3) == pytest.approx(found + 3)
    assert shortfall([each + 3 for each in closeness], quality) == pytest.approx(found - 3)
    # Twice as many pictures that are alike need less margin, and one of three that misses does not decide.
    assert shortfall(closeness * 2, quality) < found
    assert shortfall([50.0, 50.0, 10.0], 30) == shortfall([50.0, 50.0, 60.0], 30) < 0


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
    full, schedules = pictures(flux, 6), []
    with omnireuse.enable(flux.pipe, tolerance=TOLERANCE) as handle:
        for seed in range(3):
            assert torch.equal(flux.run(steps=STEPS, seed=seed), full[seed])
        assert handle.tuning.state == "ready"
        assert handle.tuning.pictures == 3
        assert f"of {STEPS} steps computed" in handle.tuning.reason
        assert handle.tuning.expected is not None
        assert 0 < handle.tuning.expected <= TOLERANCE
        # The shadows together take no more work than the pictures.
        assert 3 < handle.tuning.runs <= 6
        for seed in range(3, 6):
            assert error(flux.run(steps=STEPS, seed=seed), full[seed]) <= TOLERANCE
            schedules.append(computed(handle))
    assert schedules[0] == schedules[1] == schedules[2]
    assert 1 < len(schedules[0]) < STEPS


def test_another_process_finds_the_plan_of_its_tolerance_alone(flux: Tiny) -> None:
    found = []
    for count in (4, 1):
        with omnireuse.enable(flux.pipe, tolerance=TOLERANCE) as handle:
            for seed in range(4 - count, 4):
                last = flux.run(steps=STEPS, seed=seed)
            found.append((handle.tuning.reason, handle.tuning.path, last))
    # The second handle measures nothing, and makes the same picture.
    assert found[0][:2] == found[1][:2]
    assert torch.equal(found[0][2], found[1][2])
    for other in ({"tolerance": 0.15}, {"computed_steps": 15}):
        with omnireuse.enable(flux.pipe, **other) as handle:
            flux.run(steps=STEPS)
            assert handle.tuning.state == "measuring"


def test_a_second_measurement_comes_to_the_same_plan(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = []
    for folder in ("one", "other"):
        monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path / folder))
        with omnireuse.enable(flux.pipe, tolerance=TOLERANCE) as handle:
            last = pictures(flux, 4)[-1]
            found.append((handle.tuning.reason, last))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_a_smaller_tolerance_computes_no_fewer_steps(flux: Tiny) -> None:
    counts = []
    for tolerance in (0.02, 0.1, 0.5):
        with omnireuse.enable(flux.pipe, tolerance=tolerance) as handle:
            pictures(flux, 4)
            counts.append(len(computed(handle)))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_a_tolerance_that_no_plan_keeps_stays_with_the_untuned_rule(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, tolerance=1e-6) as handle:
        made = pictures(flux, 4)[-1]
        assert handle.tuning.state == "ready"
        assert handle.tuning.expected is None
        assert "no plan of fewer steps was seen to keep the tolerance" in handle.tuning.reason
    with omnireuse.enable(flux.pipe, tolerance=1e-6, tune=False) as handle:
        assert torch.equal(flux.run(steps=STEPS, seed=3), made)
        assert handle.tuning.state == "off"


def test_runs_too_short_to_tune_follow_the_untuned_rule(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, tolerance=0.2) as handle:
        flux.run(steps=3)
        assert handle.tuning.state == "off"
        assert "every step of a run of 3 computes" in handle.tuning.reason
