"""What a sampler makes of outputs, measured on made-up ones, and the runs that a fit leads with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from omnireuse.engines.comfyui.shadows import Leader, SolverPath
from omnireuse.engines.comfyui.solver import measured_response
from omnireuse.errors import UnsupportedModelError
from omnireuse.planning.fit import WeightFit

SIGMAS = (1.0, 0.8, 0.5, 0.3, 0.1, 0.0)
STEPS = len(SIGMAS) - 1
Call = Callable[[torch.Tensor, float], torch.Tensor]


def euler(x: torch.Tensor, call: Call) -> torch.Tensor:
    for sigma, after in pairwise(SIGMAS):
        x = x + (x - call(x, sigma)) / sigma * (after - sigma)
    return x


def two_steps(x: torch.Tensor, call: Call) -> torch.Tensor:
    """Adams-Bashforth of second order for even steps, whatever the steps are."""
    before = None
    for sigma, after in pairwise(SIGMAS):
        slope = (x - call(x, sigma)) / sigma
        x = x + (1.5 * slope - 0.5 * (slope if before is None else before)) * (after - sigma)
        before = slope
    return x


def heun(x: torch.Tensor, call: Call) -> torch.Tensor:
    for sigma, _ in pairwise(SIGMAS):
        x = 0.5 * (call(x, sigma) + call(x, sigma))
    return x


def noisy(x: torch.Tensor, call: Call) -> torch.Tensor:
    return euler(x, call) + torch.ones_like(x)


def bent(x: torch.Tensor, call: Call) -> torch.Tensor:
    return euler(x, call).square()


def running(
    sampler: Callable[[torch.Tensor, Call], torch.Tensor], start: torch.Tensor, model: Call
) -> Callable[[Mapping[str, Any]], torch.Tensor]:
    """A run of the sampler from `start`, with wrappers as ComfyUI calls them."""

    def run(wrappers: Mapping[str, Any]) -> torch.Tensor:
        def computed(x: torch.Tensor, sigma: torch.Tensor, options: Any, seed: Any) -> torch.Tensor:
            return model(x, float(sigma))

        def call(x: torch.Tensor, sigma: float) -> torch.Tensor:
            result: torch.Tensor = wrappers["predict_noise"](computed, x, torch.tensor([sigma]), {}, None)
            return result

        def solve(guider: Any, sigmas: Any, extra: Any, callback: Any, noise: torch.Tensor, latent: Any) -> Any:
            return sampler(noise, call)

        given = (None, None, {}, None, start, torch.zeros_like(start))
        outer = wrappers.get("sampler_sample")
        result: torch.Tensor = outer(solve, *given) if outer else solve(*given)
        return result

    return run


def start() -> torch.Tensor:
    return torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))


def refuse(x: torch.Tensor, sigma: float) -> torch.Tensor:
    raise AssertionError("the model is not called")


def test_eulers_steps_move_the_latents_by_their_widths() -> None:
    response = measured_response(running(euler, start(), refuse), SIGMAS, own_functions=0)
    widths = [after - sigma for sigma, after in pairwise(SIGMAS)]
    expected = np.tril(np.tile(widths, (STEPS + 1, 1)), -1)
    np.testing.assert_allclose(response.moved, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("sampler", "why"),
    [(heun, "more than once a step"), (noisy, "adds noise on the way"), (bent, "no weighted sum")],
)
def test_other_samplers_are_refused_with_the_reason(sampler: Any, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        measured_response(running(sampler, start(), refuse), SIGMAS, own_functions=0)


def model(x: torch.Tensor, sigma: float) -> torch.Tensor:
    return x * (1 - sigma) + x.roll(1, -1).tanh() * sigma


@pytest.mark.parametrize("sampler", [euler, two_steps])
def test_the_aim_of_a_step_leads_back_to_the_full_run(sampler: Any) -> None:
    response = measured_response(running(sampler, start(), refuse), SIGMAS, own_functions=0)
    inputs: list[torch.Tensor] = []
    outputs: list[torch.Tensor] = []

    def seen(computed: Any, x: torch.Tensor, sigma: torch.Tensor, *rest: Any) -> torch.Tensor:
        x0: torch.Tensor = computed(x, sigma, *rest)
        inputs.append(x)
        outputs.append((x - x0) / sigma)
        return x0

    full = running(sampler, start(), model)({"predict_noise": seen})
    path = [*inputs, full]
    off: list[torch.Tensor] = []
    reached: list[torch.Tensor] = []

    def led(_: Any, x: torch.Tensor, sigma: torch.Tensor, *rest: Any) -> torch.Tensor:
        step = len(off)
        reached.append(x)
        # Step 1 goes astray, and the aim of step 2 is to make up for it.
        used = outputs[1] * 0.7 if step == 1 else response.aim(off, outputs[step])
        off.append(used - outputs[step])
        return x - sigma * used

    final = running(sampler, start(), model)({"predict_noise": led})
    away = [float((a - b).norm()) for a, b in zip([*reached, final], path, strict=True)]
    assert away[2] > 0.01
    assert max(away[:2] + away[3:]) < 1e-5


def test_a_led_run_uses_the_weights_that_it_fits_and_computes_no_other_steps() -> None:
    run = running(euler, start(), model)
    response = measured_response(running(euler, start(), refuse), SIGMAS, own_functions=0)
    path, calls = SolverPath(), list[float]()

    def seen(computed: Any, x: torch.Tensor, sigma: torch.Tensor, *rest: Any) -> torch.Tensor:
        x0: torch.Tensor = computed(x, sigma, *rest)
        path.outputs.append((x - x0) / sigma)
        return x0

    full = run({"predict_noise": seen})
    path.calls = [[path.outputs[0]]]

    def counted(x: torch.Tensor, sigma: float) -> torch.Tensor:
        calls.append(sigma)
        return model(x, sigma)

    fit = WeightFit((0, 2, 4), STEPS)
    leader = Leader(fit.begin(path.shares), path, response, fit.first_gap)
    led = running(euler, start(), counted)(leader.wrappers)
    # Steps 1 and 3 are forecast, and steps 2 and 4 corrected.
    assert [len(weights) for weights in fit.weights[0]] == [0, 1, 2, 2, 3]
    # The first step is known, and steps 1 and 3 are not computed.
    assert calls == pytest.approx([0.5, 0.1])
    held = running(euler, start(), model)({"predict_noise": _holding((0, 2, 4))})
    assert (led - full).norm() < 0.5 * (held - full).norm()


def _holding(computed: Sequence[int]) -> Callable[..., torch.Tensor]:
    slopes: list[torch.Tensor] = []

    def predict(compute: Any, x: torch.Tensor, sigma: torch.Tensor, *rest: Any) -> torch.Tensor:
        slopes.append((x - compute(x, sigma, *rest)) / sigma if len(slopes) in computed else slopes[-1])
        return x - sigma * slopes[-1]

    return predict
