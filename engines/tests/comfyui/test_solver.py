"""A sampler's use of outputs, seen in runs on made-up ones, and the runs that a fit leads with it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from engines.tests.comfyui.played import Call, Function, Model, Sampler, euler, heun, noisy
from omnireuse.errors import UnsupportedModelError
from omnireuse.loop.stepper import Stepper, stepped
from omnireuse.planning.fit import WeightFit
from omnireuse.tuning.recording import FullRun, Recording
from omnireuse.tuning.trials import FitStepper, TrialStepper
from omnireuse_engines.comfyui.solver import CallSigmas, Response, measured_response

SIGMAS = (1.0, 0.8, 0.5, 0.3, 0.1, 0.0)
STEPS = len(SIGMAS) - 1


def two_steps(x: torch.Tensor, call: Call, sigmas: Any) -> torch.Tensor:
    """Adams-Bashforth of second order for even steps, whatever the steps are."""
    before = None
    for sigma, after in pairwise(sigmas):
        slope = (x - call(x, sigma)) / sigma
        x = x + (1.5 * slope - 0.5 * (slope if before is None else before)) * (after - sigma)
        before = slope
    return x


def bent(x: torch.Tensor, call: Call, sigmas: Any) -> torch.Tensor:
    return x + (euler(x, call, sigmas) - x).square()


def sampler_of(solver: Any, name: str = "euler") -> Sampler:
    sampler = Sampler()
    sampler.sampler_function = Function(f"sample_{name}", solver)
    return sampler


def response_of(solver: Any) -> Response:
    return measured_response(sampler_of(solver), SIGMAS, Model())


def start() -> torch.Tensor:
    return torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0))


def test_eulers_steps_move_the_latents_by_their_widths() -> None:
    widths = [after - sigma for sigma, after in pairwise(SIGMAS)]
    expected = np.tril(np.tile(widths, (STEPS + 1, 1)), -1)
    np.testing.assert_allclose(response_of(euler).moved, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("solver", "why"),
    [(heun, "more than once a step"), (noisy, "adds noise on the way"), (bent, "no weighted sum")],
)
def test_other_samplers_are_refused_with_the_reason(solver: Any, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why):
        response_of(solver)


def test_the_calls_of_a_sampler_are_known_before_they_are_made() -> None:
    known, model = CallSigmas(), Model()
    assert known.known(sampler_of(euler), SIGMAS, model) == pytest.approx(SIGMAS[:-1])
    twice = sorted([*SIGMAS[:-1], *SIGMAS[1:-1]], reverse=True)
    assert known.known(sampler_of(heun, "heun"), SIGMAS, model) == pytest.approx(twice)
    assert known.known(sampler_of(euler, "of somebody"), SIGMAS, model) is None


class Run:
    """A run of a solver whose steps are decided by another."""

    def __init__(self, run: Stepper, response: Response | None = None) -> None:
        self.run, self.response, self.calls = run, response, 0

    def made(self, solver: Any) -> torch.Tensor:
        step = 0

        def call(x: torch.Tensor, sigma: float) -> torch.Tensor:
            nonlocal step

            def compute() -> torch.Tensor:
                self.calls += 1
                return (x - (x * (1 - sigma) + x.roll(1, -1).tanh() * sigma)) / sigma

            output = stepped(self.run, compute, step, x, given={"return_dict": False})
            if self.response is not None:
                self.response.step(output, x)
            step += 1
            return x - sigma * output

        result: torch.Tensor = solver(start(), call, SIGMAS)
        return result


@pytest.mark.parametrize("solver", [euler, two_steps])
def test_a_led_run_arrives_closer_than_held_outputs_and_computes_no_other_steps(solver: Any) -> None:
    response = response_of(solver)
    recording = Recording(response, STEPS)
    final = Run(recording).made(solver)
    recording.arrived(final)
    full = FullRun.of(recording)
    np.testing.assert_allclose(full.products.effects, response.moved[-1], atol=1e-6)
    fit, again = WeightFit((0, 2, 4), STEPS), response_of(solver)
    run = Run(TrialStepper(full, fit.first_gap, FitStepper(fit, full, again)), again)
    led = run.made(solver)
    # Steps 1 and 3 are forecast, and steps 2 and 4 corrected.
    assert [len(weights) for weights in fit.weights[0]] == [0, 1, 2, 2, 3]
    # The first step is known, and steps 1 and 3 are not computed.
    assert run.calls == 2
    held = Run(_Holding((0, 2, 4))).made(solver)
    assert (led - final).norm() < 0.5 * (held - final).norm()


class _Holding(Stepper):
    def __init__(self, computed: tuple[int, ...]) -> None:
        self._computed, self._last = computed, torch.zeros(())

    def computes(self, step: int, latents: torch.Tensor | None, *, kind: object = 0) -> bool:
        return step in self._computed

    def use(self, output: torch.Tensor | None, latents: torch.Tensor, given: Any = ()) -> torch.Tensor:
        self._last = self._last if output is None else output
        return self._last
