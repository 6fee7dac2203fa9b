"""The branches of guidance are told apart where it sums them with the same shares at every step, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from omnireuse.planning.fit import WeightFit
from omnireuse.planning.path import branches_of, copied, shares_of
from tests.helpers.full_runs import fit_along, recorded
from tests.helpers.tiny import Tiny, qwen_image, stable_diffusion
from tests.helpers.tiny import flux as tiny_flux

STEPS = 4


def steps_of(branches: int, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    """The outputs of some steps: alike as those of branches are, and little apart at first."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(STEPS, 200, generator=generator)
    return [
        [(common[step] + 0.02 * (step + 1) * torch.randn(200, generator=generator)).to(dtype) for _ in range(branches)]
        for step in range(STEPS)
    ]


def found(steps: list[list[Tensor]], guided: Callable[[list[Tensor]], Tensor]) -> tuple[float, ...]:
    return shares_of([(guided(outputs), outputs) for outputs in steps])


def test_shares_are_those_of_guidance() -> None:
    assert found(steps_of(2), lambda made: made[1] + 6.0 * (made[0] - made[1])) == pytest.approx((6.0, -5.0), abs=1e-4)
    three = found(steps_of(3), lambda made: made[0] + 7.5 * (made[1] - made[0]) + 1.5 * (made[2] - made[0]))
    assert three == pytest.approx((-8.0, 7.5, 1.5), abs=1e-4)
    assert found(steps_of(1), lambda made: made[0]) == (1.0,)


def test_shares_are_found_in_half_precision() -> None:
    def guided(made: list[Tensor]) -> Tensor:
        return made[1] + 6.0 * (made[0] - made[1])

    assert found(steps_of(2, torch.bfloat16), guided) == pytest.approx((6.0, -5.0), abs=0.05)


@pytest.mark.parametrize(
    "guided",
    [
        lambda made: 0.8 * (made[1] + 6.0 * (made[0] - made[1])),
        lambda made: made[1] + 6.0 * (made[0] - made[1]) * made[1].abs(),
        lambda made: -(made[1] + 6.0 * (made[0] - made[1])),
    ],
    ids=["rescaled", "bent", "negated"],
)
def test_guidance_that_is_no_such_sum_has_no_shares(guided: Callable[[list[Tensor]], Tensor]) -> None:
    assert found(steps_of(2), guided) == (1.0,)


def test_guidance_that_changes_has_no_shares() -> None:
    scales = iter((6.0, 6.0, 3.0, 3.0))
    assert found(steps_of(2), lambda made: made[1] + next(scales) * (made[0] - made[1])) == (1.0,)
    sets_in = [steps_of(1)[0], *steps_of(2)[1:]]
    assert found(sets_in, lambda made: made[-1] + 6.0 * (made[0] - made[-1])) == (1.0,)


def test_outputs_of_one_model_are_branches_in_the_order_of_its_calls() -> None:
    a, b = torch.ones(3), torch.zeros(3)
    found = branches_of([(0, a), (0, (b,))], like=a)
    assert found is not None
    assert [each.tolist() for each in found] == [[1.0] * 3, [0.0] * 3]


def test_outputs_of_two_models_or_of_another_shape_or_kind_are_not_branches() -> None:
    a = torch.ones(3)
    for calls in ([(0, a), (1, a)], [(0, torch.ones(6))], [(0, (a, a))], []):
        assert branches_of(calls, like=a) is None


def test_copies_are_on_the_device_that_is_asked_for() -> None:
    # Large recordings are on the host, and a run that replays their calls may be elsewhere.
    (found,) = copied((torch.ones(3),), torch.device("meta"))
    assert found.device.type == "meta"
    (same,) = copied((given := torch.ones(3),))
    assert same.device == given.device
    assert same is not given


def recorded_shares(tiny: Tiny, **call: object) -> tuple[float, ...]:
    full, _ = recorded(tiny.pipe, lambda: tiny.run(steps=STEPS, **call), STEPS)
    return full.path.shares


def test_pipelines_show_the_shares_of_their_branches() -> None:
    scale = tiny_flux().inputs(guided=True, batch=1)["true_cfg_scale"]
    assert recorded_shares(tiny_flux()) == pytest.approx((scale, 1 - scale), rel=1e-3)
    assert recorded_shares(tiny_flux(), guided=False) == (1.0,)
    # Branches in one call, and guidance that is rescaled, have one set of weights.
    assert recorded_shares(stable_diffusion()) == (1.0,)
    assert recorded_shares(qwen_image()) == (1.0,)


def test_branches_of_their_own_weights_come_closer_than_one_set() -> None:
    tiny, computed = tiny_flux(), (0, 1, 2, 4, 6)
    full, latents = recorded(tiny.pipe, lambda: tiny.run(steps=8), 8)

    def miss(shares: tuple[float, ...]) -> float:
        known = replace(full, path=replace(full.path, shares=shares))
        made = fit_along(tiny.pipe, lambda: tiny.run(steps=8), WeightFit(computed, 8), known)
        return float((made - latents).norm())

    assert miss(full.path.shares) < miss((1.0,))
