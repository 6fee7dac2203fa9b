from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import omnireuse
from omnireuse import Blend, EveryNth, Hold, Polynomial, Steps, Strategy
from omnireuse.arguments.targets import strategy_of
from omnireuse.errors import ConfigError, UnknownNameError
from omnireuse.forecasters import FORECASTERS, forecaster_named
from omnireuse.forecasters.base import lagrange_weights
from tests.helpers.tiny import Tiny

coefficient = st.floats(-3, 3)
vectors = st.lists(coefficient, min_size=3, max_size=3)


@st.composite
def uneven_nodes(draw: st.DrawFn, count: int) -> list[float]:
    gaps = draw(st.lists(st.floats(0.02, 0.3), min_size=count, max_size=count))
    here, nodes = draw(st.floats(0.5, 1.0)), []
    for gap in gaps:
        here -= gap
        nodes.append(here)
    return nodes


def poly(coefficients: list[float], at: float) -> torch.Tensor:
    value = sum(c * at**power for power, c in enumerate(coefficients))
    return torch.tensor([value, -2 * value + 1], dtype=torch.float64)


@pytest.mark.parametrize(("order", "degree"), [(1, 1), (2, 2), (3, 3), (3, 2)])
@given(data=st.data())
def test_polynomial_is_exact_up_to_its_order_as_soon_as_enough_values_are_known_at_uneven_spacing(
    order: int, degree: int, data: st.DataObject
) -> None:
    coefficients = data.draw(st.lists(coefficient, min_size=degree + 1, max_size=degree + 1))
    *known, at = data.draw(uneven_nodes(degree + 2))
    memory = Polynomial(order=order).start()
    for node in known:
        memory.observe(node, poly(coefficients, node))
    torch.testing.assert_close(memory.predict(at), poly(coefficients, at), rtol=1e-6, atol=1e-6)


@given(nodes=uneven_nodes(4), at=st.floats(-1, 1))
def test_weights_sum_to_one_and_reproduce_nodes(nodes: list[float], at: float) -> None:
    assert sum(lagrange_weights(nodes, at)) == pytest.approx(1.0, abs=1e-6)
    assert lagrange_weights(nodes, nodes[2]) == pytest.approx([0, 0, 1, 0], abs=1e-9)


@pytest.mark.parametrize("name", sorted(FORECASTERS))
def test_one_value_is_held_and_none_is_unprimed(name: str) -> None:
    memory = forecaster_named(name).start()
    assert not memory.primed
    assert memory.kept_bytes == 0
    memory.observe(0.9, torch.tensor([1.0, 2.0]))
    assert memory.primed
    assert memory.kept_bytes == 8
    assert memory.predict(0.5).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", sorted(FORECASTERS))
def test_a_second_value_at_one_coordinate_replaces_the_first(name: str) -> None:
    memory = forecaster_named(name).start()
    for value in (1.0, 5.0):
        memory.observe(0.9, torch.tensor([value]))
    assert memory.predict(0.5).tolist() == [5.0]


def test_blend_holds_until_a_slope_has_proved_itself() -> None:
    memory = Blend().start()
    memory.observe(1.0, torch.tensor([0.0, 0.0]))
    memory.observe(0.8, torch.tensor([1.0, 0.0]))
    assert memory.predict(0.6).tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("third", "expected"), [(2.0, 3.0), (1.5, 1.75), (1.0, 1.0), (-4.0, -4.0), (9.0, 17.0)])
def test_blend_weighs_the_slope_by_what_it_would_have_been_worth(third: float, expected: float) -> None:
    # The line foretold 2; the truth sets the weight: all of the slope, half of it, none, less than none, more than all.
    memory = Blend().start()
    for at, value in ((1.0, 0.0), (0.8, 1.0), (0.6, third)):
        memory.observe(at, torch.tensor([value], dtype=torch.float64))
    assert memory.predict(0.4).item() == pytest.approx(expected)


def observed(*values: torch.Tensor) -> torch.Tensor:
    """The forecast at 0.5 of values at 1, 0.8 and 0.6, by a blend that holds misses."""
    memory = Blend(holds_misses=True).start()
    for at, value in zip((1.0, 0.8, 0.6), values, strict=True):
        memory.observe(at, value)
    return memory.predict(0.5)


@given(first=vectors, second=vectors, third=vectors)
def test_a_value_that_line_or_holding_missed_by_as_much_as_the_value_is_held(
    first: list[float], second: list[float], third: list[float]
) -> None:
    values = [torch.tensor([each], dtype=torch.float64) for each in (first, second, third)]
    line, held, size = (2 * values[1] - values[0] - values[2]).norm(), (values[1] - values[2]).norm(), values[2].norm()
    missed = max(line, held)
    assume(missed > 0.01 and abs(missed - size) > 1e-4 * size and abs(missed - size / 2) > 1e-4 * size)
    forecast = observed(*values)
    if missed > size:
        assert torch.equal(forecast, values[2])
    # A part that all values share makes every miss small beside them, and changes no weight.
    shared = observed(*(torch.cat((each, torch.full((1, 1), 100.0, dtype=each.dtype)), dim=1) for each in values))
    if missed < size / 2:
        torch.testing.assert_close(shared[:, :3], forecast)
    else:  # Nearer to the last value than a line that nobody doubts.
        doubted, undoubted = (each - values[2] for each in (forecast, shared[:, :3]))
        assert doubted.norm() <= undoubted.norm() * (1 + 1e-4) + 1e-4


def test_a_run_that_corrects_believes_the_worse_of_the_last_two_weights_and_none_before_them() -> None:
    memory = Blend(corrects=True, holds_misses=False).start()
    # Steps of 1, ½, ½ and ½: the lines' weights are ½, 1 and 1.
    memory.observe(1.0, torch.tensor([0.0]))
    memory.observe(0.9, torch.tensor([1.0]))
    for at, value in ((0.8, 1.5), (0.7, 2.0), (0.6, 2.5)):
        memory.observe(at, torch.tensor([value]))
        weight = {0.8: 0.0, 0.7: 0.5, 0.6: 1.0}[at]
        assert memory.predict(at - 0.1).item() == pytest.approx(value + 0.5 * weight)


def test_a_miss_counts_four_fifths_at_each_further_value() -> None:
    memory = Blend(holds_misses=True).start()
    # The line of the first two foretold 2, and missed by twice the value; then the path is straight.
    for place, value in enumerate((0.0, 1.0, -2.0, -2.3, -2.6, -2.9, -3.2, -3.5)):
        memory.observe(1 - place / 20, torch.tensor([value]))
        foretold = memory.predict(0.95 - place / 20).item() - value
        # 2 · 0.8³ is still a whole value, 2 · 0.8⁴ is not.
        assert foretold == pytest.approx(-0.3 if place > 5 else 0.0, abs=1e-5)


def test_misses_are_held_in_runs_of_few_computed_steps() -> None:
    for count, holds in ((11, True), (12, False)):
        assert Blend().for_run(28, tuple(range(count)), None, "output").holds_misses is holds
        for asked in (True, False):
            assert Blend(holds_misses=asked).for_run(28, tuple(range(count)), None, "output").holds_misses is asked
    with pytest.raises(ConfigError, match="holds_misses must be True, False or None"):
        Blend(holds_misses=1)  # type: ignore[arg-type]


def test_blend_holds_where_nothing_moved() -> None:
    memory = Blend().start()
    for at in (1.0, 0.8, 0.6, 0.4):
        memory.observe(at, torch.tensor([3.0]))
    assert memory.predict(0.2).tolist() == [3.0]


@pytest.mark.parametrize("forecaster", [Hold(), Polynomial(order=2), Blend(order=2)])
def test_low_precision_comes_back_in_its_own_dtype(forecaster: Hold | Polynomial | Blend) -> None:
    memory = forecaster.start()
    for at in (1.0, 0.8, 0.5, 0.4):
        memory.observe(at, torch.tensor([at], dtype=torch.bfloat16))
    assert memory.predict(0.1).dtype == torch.bfloat16


@pytest.mark.parametrize("order", [0, 4, 1.5, True, "1"])
@pytest.mark.parametrize("kind", [Polynomial, Blend])
def test_orders_out_of_range_are_refused(kind: type, order: object) -> None:
    with pytest.raises(ConfigError, match="order must be 1, 2 or 3"):
        kind(order=order)


def test_unknown_forecasters_suggest_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'polynomial'"):
        forecaster_named("polinomial")


# -- axes, samples and what is remembered ------------------------------------------------------------------------------


def test_the_blend_trusts_the_slope_more_over_a_shorter_distance() -> None:
    # Half of the line's step was true over 0.2: three quarters are expected over 0.1, and nothing over 0.4.
    memory = Blend().start()
    for at, value in ((1.0, 0.0), (0.8, 1.0), (0.6, 1.5)):
        memory.observe(at, torch.tensor([value], dtype=torch.float64))
    assert memory.predict(0.5).item() == pytest.approx(1.5 + 0.75 * 0.25)
    assert memory.predict(0.2).item() == pytest.approx(1.5)


def test_the_blend_is_straight_in_a_power_of_noise() -> None:
    for exponent in (0.5, 1.0, 1.5, 2.0):
        memory = Blend(exponent=exponent).start()
        for at in (1.0, 0.8, 0.6):
            memory.observe(at, torch.tensor([3 - 2 * at**exponent], dtype=torch.float64))
        assert memory.predict(0.1).item() == pytest.approx(3 - 2 * 0.1**exponent)


def test_the_power_is_one_and_a_half_for_x0_over_known_noise() -> None:
    noises = tuple(1 - i / 10 for i in range(10))
    for known, target, exponent in ((noises, "x0", 1.5), (noises, "output", None), (None, "x0", None)):
        assert Blend().for_run(10, (0, 2, 4, 6, 8), known, target).exponent == exponent
        assert Blend(exponent=1.0).for_run(10, (0, 2, 4, 6, 8), known, target).exponent == 1.0


@pytest.mark.parametrize("exponent", [0.4, 3.1, True, "noise"])
def test_the_power_of_noise_is_limited(exponent: Any) -> None:
    with pytest.raises(ConfigError, match=r"exponent must be from 0.5 to 3"):
        Blend(exponent=exponent)


def test_a_value_seen_twice_teaches_nothing() -> None:
    memory = Blend().start()
    for at, value in ((1.0, 0.0), (0.8, 1.0), (0.6, 2.0), (0.6, 2.0)):
        memory.observe(at, torch.tensor([value], dtype=torch.float64))
    assert memory.predict(0.4).item() == pytest.approx(3.0)


def test_each_sample_has_a_weight_of_its_own() -> None:
    paths = torch.randn(5, 3, 2, 4, generator=torch.Generator().manual_seed(0))
    paths[:, 0] = torch.arange(5.0)[:, None, None]
    together, alone = Blend().start(), [Blend().start() for _ in range(3)]
    for at, value in zip((1.0, 0.8, 0.6, 0.4, 0.2), paths, strict=True):
        together.observe(at, value)
        for sample, memory in enumerate(alone):
            memory.observe(at, value[sample : sample + 1])
    forecast = together.predict(0.1)
    for sample, memory in enumerate(alone):
        torch.testing.assert_close(forecast[sample : sample + 1], memory.predict(0.1))
    torch.testing.assert_close(forecast[0], torch.full((2, 4), 4.5))


def test_a_broken_sample_leaves_the_others_alone() -> None:
    memory = Blend().start()
    for step in range(4):
        memory.observe(1 - step / 10, torch.tensor([[float(step)], [float("nan")]]))
    assert memory.predict(0.6)[0].item() == pytest.approx(4.0)


def test_the_axis_is_the_noise_level_or_the_steps(flux: Tiny) -> None:
    sigmas = [1.0, 0.9, 0.7, 0.3, 0.1]
    seen: list[torch.Tensor] = []
    flux.pipe.transformer.register_forward_hook(lambda _m, _a, out: seen.append(out[0].clone()))
    for axis, width in (("noise", (0.9 - 0.7) / (1.0 - 0.9)), ("steps", 1.0)):
        seen.clear()
        latents: list[torch.Tensor] = []

        def note(
            _pipe: Any, _step: int, _time: Any, given: dict[str, Any], into: list[Any] = latents
        ) -> dict[str, Any]:
            into.append(given["latents"].clone())
            return given

        strategy = {"policy": Steps(steps=(0, 1, 3)), "forecaster": Polynomial(), "prediction_target": "output"}
        with omnireuse.enable(flux.pipe, region="call", axis=axis, **strategy):
            flux.run(steps=None, sigmas=sigmas, guided=False, callback_on_step_end=note)
        reused = (latents[2] - latents[1]) / (sigmas[3] - sigmas[2])
        torch.testing.assert_close(reused, seen[1] + width * (seen[1] - seen[0]), rtol=1e-3, atol=1e-4)


def test_history_in_fewer_bits_takes_fewer_bytes_and_comes_back_in_the_values_dtype(flux: Tiny) -> None:
    kept, results = {}, {}
    for dtype in (None, "bfloat16", torch.float16):
        with omnireuse.enable(
            flux.pipe, strategy_of(policy="fixed", forecaster="polynomial", region="step", history_dtype=dtype)
        ) as handle:
            results[dtype] = flux.run(steps=8)
        kept[dtype] = handle.summary().kept_bytes
        assert results[dtype].dtype == torch.float32
    assert kept["bfloat16"] == kept[torch.float16] < kept[None]
    for dtype in ("bfloat16", torch.float16):
        assert not torch.equal(results[dtype], results[None])
        torch.testing.assert_close(results[dtype], results[None], rtol=0.1, atol=0.1)


def test_kept_bytes_count_history_and_signals_once(flux: Tiny) -> None:
    kept = {}
    for signal in ("none", "latents", "expected_output"):
        strategy = {"policy": Steps(steps=(0, 1, 2)), "region": "call", "prediction_target": "output"}
        with omnireuse.enable(flux.pipe, signal=signal, **strategy) as handle:
            latents = flux.run(steps=6, guided=False)
        kept[signal] = handle.summary().kept_bytes
    assert kept["none"] == latents.nbytes
    assert kept["latents"] == 2 * latents.nbytes
    # The signal of the last computed step is that of the last step here.
    assert kept["expected_output"] == 2 * latents.nbytes


@pytest.mark.parametrize("dtype", ["int8", "bfloat", torch.int32, 16, "nn", "float8_e4m3fn"])
def test_dtypes_that_hold_no_history_are_refused(dtype: object) -> None:
    with pytest.raises(ConfigError, match="history_dtype must be a floating-point dtype"):
        Strategy(policy=EveryNth(), history_dtype=dtype)


def test_an_unknown_axis_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'steps'"):
        Strategy(policy=EveryNth(), axis="step")
