"""What a profile measures on the runs that a search begins with, beside the caches' own definitions."""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import omnireuse
from omnireuse import Profile
from omnireuse.arguments.targets import strategy_of
from omnireuse.calibration.runs import PromptRuns
from omnireuse.diffusion.cache.magcache import MagCacheBackend
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import ConfigError, StateError
from omnireuse.tuning import recording
from tests.helpers.prompted import Prompted, spoiled

PROMPTS = ["a circle", "a square", "a cross"]
GIVEN = [PROMPTS[0], PROMPTS[2], PROMPTS[1]]
"""The same for a calibration, which holds out the middle one of three and searches with the others."""
STEPS = 9


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return omnireuse.calibrate(Prompted(), GIVEN, steps=STEPS, computed_steps=[5])


def run(pipeline: Any, place: int) -> None:
    pipeline(
        PROMPTS[place],
        num_inference_steps=STEPS,
        generator=torch.Generator().manual_seed(place),
        output_type="latent",
    )


def test_the_polynomial_is_that_of_a_calibration_by_hand(profile: Profile) -> None:
    pipeline = Prompted()
    strategy: dict[str, Any] = {"policy": "never", "region": "blocks", "signal": "modulated_input"}
    with omnireuse.enable(pipeline, strategy_of(**strategy, measure_errors=True)) as handle:
        for place in (0, 1):
            run(pipeline, place)
    by_hand = omnireuse.fit_tea_cache(handle.events)
    assert profile.measured is not None
    fit = profile.measured.tea_cache
    assert fit is not None
    at = np.linspace(*np.percentile([event.drift for event in handle.events if event.drift], [10, 90]), 5)
    np.testing.assert_allclose(np.polyval(fit.coefficients, at), np.polyval(by_hand, at), rtol=1e-3)
    assert fit.pairs == 2 * 2 * (STEPS - 1), "two prompts to search with, two branches"
    assert fit.r2 is not None
    assert 0 <= fit.r2 <= 1
    assert fit.r2_held_out is not None
    assert fit.r2_held_out != fit.r2


def test_the_ratios_are_those_of_a_calibration_by_hand(profile: Profile) -> None:
    pipeline = Prompted()
    backend = MagCacheBackend(DiffusionCacheConfig(mag_calibrate=True))
    backend.enable(pipeline)
    for place in range(len(PROMPTS)):
        run(pipeline, place)
    assert profile.measured is not None
    assert profile.measured.mag_ratios is not None
    for ratios, by_hand in zip(profile.measured.mag_ratios, backend.calibrated_ratios(), strict=True):
        assert ratios == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize(("backend", "options"), [("tea_cache", {"rel_l1_thresh": 0.3}), ("mag_cache", {})])
def test_caches_run_with_what_was_measured(profile: Profile, backend: str, options: dict[str, Any]) -> None:
    pipeline = Prompted()
    assert profile.measured is not None
    with omnireuse.enable(pipeline, backend, profile=profile, **options) as handle:
        run(pipeline, 0)
    policy: Any = handle.strategy.policy
    if backend == "tea_cache":
        assert profile.measured.tea_cache is not None
        assert policy.coefficients == profile.measured.tea_cache.coefficients
        assert policy.rel_l1_thresh == 0.3
    else:
        assert policy.ratios == profile.measured.mag_ratios
    assert handle.summary().calls == 2 * STEPS
    with pytest.raises(ConfigError, match="must be 'tea_cache' or 'mag_cache' with a profile"):
        omnireuse.enable(pipeline, "easy_cache", profile=profile)


def test_a_model_that_nobody_declared_shows_its_whole_denoiser_only(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Prompted("stable_diffusion")
    with caplog.at_level(logging.INFO, logger="omnireuse"):
        profile = omnireuse.calibrate(pipeline, GIVEN, steps=5, computed_steps=[3])
    assert "blocks are not measured" in caplog.text
    assert profile.measured is not None
    assert profile.measured.tea_cache is None
    assert profile.measured.mag_ratios is None
    with pytest.raises(ConfigError, match="UNet2DConditionModel"):
        profile.options_for("tea_cache")


def test_a_batch_is_measured_too() -> None:
    profile = omnireuse.calibrate(Prompted(), GIVEN, steps=6, computed_steps=[3], batch_size=2)
    assert profile.measured is not None
    assert profile.measured.tea_cache is not None


def test_measuring_changes_nothing_and_leaves_no_trace() -> None:
    pipeline = Prompted()
    runs = PromptRuns(pipeline, PROMPTS, seed=0, call={"num_inference_steps": 4})
    plain = pipeline(
        PROMPTS[0], num_inference_steps=4, generator=torch.Generator().manual_seed(0), output_type="np"
    ).images
    classes = [type(module) for module in pipeline.transformer.modules()]
    runs.full_run(range(1), record=True)
    (picture,) = runs.made[range(1)]
    np.testing.assert_array_equal(picture, plain[0])
    assert [type(module) for module in pipeline.transformer.modules()] == classes


def test_a_calibration_keeps_as_much_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_BYTES", 1000)
    monkeypatch.setattr(recording, "ON_DEVICE", 0)
    runs = PromptRuns(Prompted(), PROMPTS, seed=0, call={"num_inference_steps": 4})
    full = runs.full_run(range(1), record=True)
    assert full is not None
    assert len(full.path.latents) == 4 + 1
    assert runs.full_run(range(1)) is None


def test_memory_does_not_grow_with_the_number_of_runs() -> None:
    def peak(prompts: list[str]) -> int:
        pipeline, most, calls = Prompted(), 0, itertools.count(1)

        def weigh(*_: Any) -> None:
            nonlocal most
            if next(calls) % (2 * 4):
                return  # most is kept at a run's last call
            # Sparse ones, which other tests may have left, have no bytes of their own.
            tensors = (each for each in gc.get_objects() if type(each) is torch.Tensor)
            alive = {id(each): each.nbytes for each in tensors if each.layout is torch.strided}
            most = max(most, sum(alive.values()))

        runs = PromptRuns(pipeline, prompts, seed=0, call={"num_inference_steps": 4})
        pipeline.transformer.register_forward_hook(weigh)
        for place in range(len(prompts)):
            runs.full_run(range(place, place + 1), record=True)
        return most

    gc.collect()
    few = peak(PROMPTS[:2])
    gc.collect()
    assert peak([f"prompt {number}" for number in range(6)]) <= few * 1.05


def test_a_run_that_is_not_finite_names_prompt_and_step(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Prompted()
    calls_a_run = 2 * 5
    spoiled(pipeline.transformer, lambda call: call == calls_a_run + 2 * 3)
    with pytest.raises(StateError, match=r"the full run of 'a square' is not finite"):
        omnireuse.calibrate(pipeline, GIVEN, steps=5, computed_steps=[3])
    assert "from step 3 on" in caplog.text
    omnireuse.enable(pipeline).disable()


def test_a_batch_that_is_not_finite_names_the_row_that_is_not() -> None:
    pipeline = Prompted()
    spoiled(pipeline.transformer, lambda call: call == 2)
    with pytest.raises(StateError, match=r"the full run of 'a square' is not finite"):
        omnireuse.calibrate(pipeline, GIVEN, steps=5, computed_steps=[3], batch_size=2)
