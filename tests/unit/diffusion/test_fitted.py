"""Weights fitted to a schedule: what is handed on, in either region, and what happens where they do not belong."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import EveryNth, Generation, Hold, Steps
from omnireuse.errors import ConfigError
from omnireuse.forecasters import Fitted
from omnireuse.hooks.interception import MethodCall, intercept
from omnireuse.loop.strategy import Strategy
from tests.helpers.tiny import Tiny

STEPS = 6
COMPUTED = (0, 1, 3, 5)
AT = tuple(1 - step / STEPS for step in range(STEPS))
HELD: tuple[tuple[float, ...], ...] = ((), (), (1.0,), (), (1.0,), ())
MENDED: tuple[tuple[float, ...], ...] = ((), (), (1.5, -0.5), (1.2, 0.1, -0.3), (0.9, 0.1), (2.0, -1.0))


def fitted(weights: tuple[tuple[float, ...], ...], computed: tuple[int, ...] = COMPUTED) -> Fitted:
    return Fitted(coordinates=AT, weights=(weights,), computed=computed)


def handed_on(tiny: Tiny, steps: int = STEPS, **choices: Any) -> tuple[list[torch.Tensor], Any]:
    """What the scheduler was handed at each step, and the events."""
    seen: list[torch.Tensor] = []

    def stepped(call: MethodCall) -> Any:
        seen.append((call.args[0] if call.args else call.kwargs["model_output"]).clone())
        return call.make()

    inner = intercept(tiny.pipe.scheduler, seen, {"step": stepped})
    with omnireuse.enable(tiny.pipe, **choices) as handle:
        tiny.run(steps=steps)
    inner.undo()
    return seen, handle.events


@pytest.mark.parametrize("region", ["step", "call"])
def test_weights_that_hold_are_the_forecaster_hold(flux: Tiny, region: str) -> None:
    schedule = Steps(steps=COMPUTED)
    held, _ = handed_on(flux, policy=schedule, forecaster=Hold(), prediction_target="output", region=region)
    made, events = handed_on(flux, policy=schedule, forecaster=fitted(HELD), region=region)
    assert all(torch.equal(a, b) for a, b in zip(held, made, strict=True))
    assert not any(event.corrected for event in events)


def test_computed_steps_after_a_gap_hand_on_what_their_weights_say(flux: Tiny) -> None:
    made, events = handed_on(flux, policy=Steps(steps=COMPUTED), forecaster=fitted(MENDED))
    assert [event.corrected for event in events] == [False, False, False, True, False, True]
    assert [event.reused for event in events] == [False, False, True, False, True, False]
    # Steps 0 and 1 are handed on as they were computed, and 2 is made of them.
    torch.testing.assert_close(made[2], 1.5 * made[1] - 0.5 * made[0])
    # The output that step 3 computed follows from what was handed on, and so does what step 4 is made of.
    computed = (made[3] - 0.1 * made[1] + 0.3 * made[0]) / 1.2
    torch.testing.assert_close(made[4], 0.9 * computed + 0.1 * made[1], rtol=1e-4, atol=1e-5)


def test_branches_with_weights_of_their_own_are_each_handed_on_with_theirs(flux: Tiny) -> None:
    choices: dict[str, Any] = {"policy": Steps(steps=COMPUTED), "region": "call"}
    alike, _ = handed_on(flux, forecaster=fitted(MENDED), **choices)
    twice, _ = handed_on(
        flux, forecaster=Fitted(coordinates=AT, weights=(MENDED, MENDED), computed=COMPUTED), **choices
    )
    assert all(torch.equal(a, b) for a, b in zip(alike, twice, strict=True))
    # The unconditional branch holds, the conditional one holds half of its output: what is handed on tells which.
    halved = tuple(tuple(0.5 * weight for weight in weights) for weights in HELD)
    held, _ = handed_on(flux, forecaster=fitted(HELD), **choices)
    parts, _ = handed_on(flux, forecaster=Fitted(coordinates=AT, weights=(halved, HELD), computed=COMPUTED), **choices)
    none = tuple(tuple(0.0 * weight for weight in weights) for weights in HELD)
    without, _ = handed_on(flux, forecaster=Fitted(coordinates=AT, weights=(none, HELD), computed=COMPUTED), **choices)
    torch.testing.assert_close(parts[2], (held[2] + without[2]) / 2)
    assert not torch.allclose(held[2], without[2])


def test_weights_of_two_branches_end_where_one_is_called(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    schedule = Steps(steps=(0, 1, 2, 4, 5))
    both = Fitted(coordinates=AT, weights=(HELD, MENDED), computed=COMPUTED)
    with (
        caplog.at_level(logging.WARNING, "omnireuse"),
        omnireuse.enable(flux.pipe, policy=schedule, forecaster=both, region="call"),
    ):
        alone = flux.run(steps=STEPS, guided=False)
    assert caplog.text.count("fitted for 2 branches of guidance; step 0 has 1 calls") == 1
    with omnireuse.enable(flux.pipe, policy=schedule, forecaster="blend", prediction_target="output", region="call"):
        assert torch.equal(flux.run(steps=STEPS, guided=False), alone)


def test_weights_of_two_branches_end_at_the_step_where_guidance_does(caplog: pytest.LogCaptureFixture) -> None:
    both = Fitted(coordinates=AT, weights=(HELD, MENDED), computed=COMPUTED)
    generation = Generation(Strategy.where_it_fits(Steps(steps=COMPUTED), both), total=STEPS)

    def step(*branches: str) -> None:
        for order, branch in enumerate(branches):
            choice = generation.decide(branch, order=order)
            assert not choice.reuse
            generation.carry_out(choice, torch.ones(1, 2), torch.ones(1, 2))
        generation.advance()

    with caplog.at_level(logging.WARNING, "omnireuse"):
        step("cond", "uncond")
        assert generation.kept_bytes
        step("cond")
    assert caplog.text.count("step 1 has 1 calls, so a blend forecasts instead") == 1
    assert generation.kept_bytes == 0


@pytest.mark.parametrize("region", ["step", "call"])
def test_the_last_step_may_be_left_out(flux: Tiny, region: str) -> None:
    weights = ((), (), (1.0,), (), (1.0,), (1.1, -0.1))
    schedule = Steps(steps=(0, 1, 3), compute_last=False)
    _, events = handed_on(flux, policy=schedule, forecaster=fitted(weights, (0, 1, 3)), region=region)
    assert {event.step for event in events if event.reused} == {2, 4, 5}


@pytest.mark.parametrize("steps", [5, 9])
def test_another_number_of_steps_without_noise_is_forecast_by_the_blend(
    flux: Tiny, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = EveryNth(every=2)
    with caplog.at_level(logging.WARNING, "omnireuse"):
        made, events = handed_on(flux, steps=steps, policy=schedule, forecaster=fitted(MENDED), axis="steps")
    assert caplog.text.count("a blend forecasts instead") == 1
    assert not any(event.corrected for event in events)
    blend, _ = handed_on(
        flux, steps=steps, policy=schedule, forecaster="blend", prediction_target="output", axis="steps"
    )
    assert all(torch.equal(a, b) for a, b in zip(made, blend, strict=True))


def test_a_step_that_a_guard_computes_ends_the_weights_of_this_run(
    flux: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"):
        made, _ = handed_on(flux, policy=Steps(steps=(0, 1, 2, 3, 5)), forecaster=fitted(MENDED))
    assert "a blend forecasts instead" in caplog.text
    assert all(torch.isfinite(each).all() for each in made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": ()}, "a set for at least one branch"),
        ({"weights": (((),) * 5,)}, "as many as there are steps, 6"),
        ({"weights": (((), (), (), (), (1.0,), ()),)}, "1 to 2 entries at step 2"),
        ({"weights": (((1.0, 0.0), *HELD[1:]),)}, "1 to 1 entries at step 0"),
        ({"computed": (0, 3, 1, 5)}, "steps from 0 to 5 in order"),
        ({"computed": (0, 9)}, "steps from 0 to 5 in order"),
    ],
)
def test_weights_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Fitted(**{"coordinates": AT, "weights": (HELD,), "computed": COMPUTED, **change})


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"region": "blocks"}, "region must be step or call with Fitted"),
        (
            {"forecaster": Fitted(coordinates=AT, weights=(HELD, HELD), computed=COMPUTED)},
            "region must be call with Fitted, got 'step'",
        ),
        ({"prediction_target": "x0"}, "prediction_target must be output with the forecaster Fitted"),
    ],
)
def test_weights_belong_to_whole_outputs(flux: Tiny, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        omnireuse.enable(flux.pipe, **{"policy": "fixed", "forecaster": fitted(HELD), **choices})
