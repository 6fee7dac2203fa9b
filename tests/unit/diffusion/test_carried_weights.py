"""Weights that were fitted at some noise levels, carried over to others."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import omnireuse
from omnireuse import FixedSchedule
from omnireuse.errors import ConfigError
from omnireuse.forecasters import Fitted
from omnireuse.forecasters.base import lagrange_weights
from tests.helpers.tiny import Tiny

Weights = tuple[tuple[float, ...], ...]


def noises(total: int, shift: float = 1.0) -> tuple[float, ...]:
    even = [1 - index / total for index in range(total)]
    return tuple(shift * s / (1 + (shift - 1) * s) for s in even)


def through(at: tuple[float, ...], computed: tuple[int, ...], order: int) -> Weights:
    """The weights of the polynomial through the last `order` + 1 computed outputs."""
    found: list[tuple[float, ...]] = []
    for step in range(len(at)):
        nodes = [at[each] for each in computed if each <= step][: -order - 2 : -1]
        found.append(() if step in computed else tuple(lagrange_weights(nodes, at[step])))
    return tuple(found)


def schedules(total: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(1, total - 1), min_size=2, max_size=total - 3).map(lambda inner: (0, *sorted(inner)))


@given(order=st.integers(0, 3), made=schedules(12), run=schedules(20), shift=st.floats(0.5, 4))
def test_a_polynomial_is_the_same_polynomial_at_any_noise(
    order: int, made: tuple[int, ...], run: tuple[int, ...], shift: float
) -> None:
    at, here = noises(12), noises(20, shift)
    fit = Fitted(coordinates=at, weights=(through(at, made, order),), computed=made)
    carried = fit.for_run(len(here), run, here, "output")
    assert (carried.coordinates, carried.computed) == (here, run)
    known = max(map(len, fit.weights[0]))
    for step, (weights, polynomial) in enumerate(zip(carried.weights[0], through(here, run, known - 1), strict=True)):
        if step in run:
            assert not any(weights[1:])
        else:
            assert weights == pytest.approx(polynomial, abs=1e-6)


MENDED: Weights = ((), (), (1.5, -0.5), (1.2, 0.1, -0.3), (0.9, 0.1), (2.0, -1.0))


def test_the_gaps_that_it_was_fitted_on_keep_their_weights() -> None:
    at, computed = noises(6), (0, 1, 3, 5)
    full: Weights = (*MENDED[:4], (0.9, 0.1, 0.0), (2.0, -1.0, 0.0))
    fit = Fitted(coordinates=at, weights=(full,), computed=computed)
    assert fit.for_run(6, computed, at, "output") is fit
    # All but equal noise: each gap is its own nearest by far.
    near = tuple(level - 0.002 * level * (1 - level) for level in at)
    for carried, own in zip(fit.for_run(6, computed, near, "output").weights[0], full, strict=True):
        assert carried[: len(own)] == pytest.approx(own, abs=0.1)


def test_a_finer_run_corrects_as_much_in_a_shorter_step() -> None:
    # The correction moves the latents by half of a step of the coarse run.
    coarse = Fitted(coordinates=noises(4), weights=(((), (1.0,), (1.5, -0.5), (1.0,)),), computed=(0, 2))
    fine = coarse.for_run(8, (0, 4), noises(8), "output").weights[0]
    assert fine[1:4] == ((1.0,),) * 3
    # Over the same gap, the distances of the reused steps add up to half as much again; the step is half as long.
    assert fine[4] == pytest.approx((1 + 0.5 * 1.5 * 2, -0.5 * 1.5 * 2))


def test_other_schedules_help_where_their_gaps_are_more_alike() -> None:
    at = noises(12)
    every_third, every_second = tuple(range(0, 12, 3)), tuple(range(0, 12, 2))
    held = tuple(() if step in every_third else (1.0,) for step in range(12))
    fit = Fitted(
        coordinates=at,
        weights=(held,),
        computed=every_third,
        others=((every_second, (through(at, every_second, 1),)),),
    )
    here = noises(13)
    run = tuple(range(0, 13, 2))
    assert fit.for_run(len(here), run, here, "output").weights[0][5] == pytest.approx(
        through(here, run, 1)[5], abs=0.05
    )
    with pytest.raises(ConfigError, match="others must have weights for 1 branches each"):
        Fitted(coordinates=at, weights=(held,), computed=every_third, others=((every_second, (held, held)),))


@pytest.mark.parametrize("here", [(5.0, 4.0, 3.0, 2.0, 1.0), (1.0, 0.5, 0.5, 0.2, 0.1), (1.0, 0.7, 0.5, 0.2, 0.0)])
def test_noise_that_is_not_known_or_does_not_fall_carries_nothing(here: tuple[float, ...]) -> None:
    fit = Fitted(coordinates=noises(6), weights=(MENDED,), computed=(0, 1, 3, 5))
    assert fit.for_run(5, (0, 2, 4), here, "output") is fit


@pytest.mark.parametrize("region", ["step", "call"])
def test_a_run_of_another_number_of_steps_uses_them(flux: Tiny, region: Any, caplog: pytest.LogCaptureFixture) -> None:
    fit = Fitted(coordinates=noises(6), weights=(MENDED,), computed=(0, 1, 3, 5))
    with (
        caplog.at_level(logging.WARNING, "omnireuse"),
        omnireuse.enable(flux.pipe, policy=FixedSchedule(every=2), forecaster=fit, region=region) as handle,
    ):
        made = flux.run(steps=9)
    assert torch.isfinite(made).all()
    assert not caplog.text
    assert any(event.corrected for event in handle.events)
    assert {event.step for event in handle.events if event.reused} == {1, 3, 5, 7}
