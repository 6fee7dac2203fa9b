"""Forecasters of higher kinds, the axis they measure distance on, and the dtype that they remember in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Blend, EveryNth, Polynomial, Steps, Strategy
from omnireuse.arguments.targets import strategy_of
from omnireuse.errors import ConfigError, UnknownNameError
from tests.helpers.tiny import Tiny


def test_the_blend_trusts_the_slope_more_over_a_shorter_distance() -> None:
    # Half of the line's step was true over 0.2: three quarters are expected over 0.1, and nothing over 0.4.
    memory = Blend().start()
    for at, value in ((1.0, 0.0), (0.8, 1.0), (0.6, 1.5)):
        memory.observe(at, torch.tensor([value], dtype=torch.float64))
    assert memory.predict(0.5).item() == pytest.approx(1.5 + 0.75 * 0.25)
    assert memory.predict(0.2).item() == pytest.approx(1.5)


def test_the_blend_is_straight_in_a_power_of_noise() -> None:
    for exponent in (0.5, 1.5, 2.0):
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
    with pytest.raises(ConfigError, match=r"exponent must be a number in \[0.5, 3\] or None"):
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
