"""Tuning from outside: full pictures first, then one frozen plan."""

from __future__ import annotations

import contextlib
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, EulerAncestralDiscreteScheduler

import omnireuse
from omnireuse import Profile
from omnireuse.arguments.tune import TuneOptions
from omnireuse.errors import ConfigError
from omnireuse.profiles.conditions import watch_of
from omnireuse.tuning.configuration import Configuration
from tests.helpers.tiny import Tiny
from tests.helpers.tiny import small_flux as tiny_flux
from tests.helpers.tiny import stable_diffusion as tiny_sd
from tests.unit.diffusion.test_coexistence import stable_diffusion_control

STEPS = 24


def pictures(tiny: Tiny, count: int, **call: Any) -> list[torch.Tensor]:
    return [tiny.run(steps=STEPS, seed=seed, **call) for seed in range(count)]


class Counted:
    """Counts the calls of a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.calls = 0
        module.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.calls += 1

    def during(self, run: Callable[[], object]) -> int:
        before = self.calls
        run()
        return self.calls - before


def test_a_trial_of_the_untuned_default_is_what_the_default_would_serve() -> None:
    tiny, call = stable_diffusion_control(), {"controlnet_conditioning_scale": 1.0, "control_guidance_end": 0.5}
    full = tiny.run(steps=20, **call)
    with omnireuse.enable(tiny.pipe, tune=False):
        served = tiny.run(steps=20, **call)
    with omnireuse.enable(tiny.pipe) as handle:
        for seed in range(3):
            tiny.run(steps=20, seed=seed, **call)
        profile = handle.tuned_profile
    assert profile is not None
    evidence = profile.plans[12].evidence
    assert evidence is not None
    error = (served - full).abs().mean() / full.abs().mean()
    assert evidence.untuned[0] == pytest.approx(error.item(), rel=1e-5)


def test_the_first_pictures_are_bit_equal_and_later_ones_repeat(flux: Tiny) -> None:
    full = pictures(flux, 5)
    with omnireuse.enable(flux.pipe) as handle:
        states = []
        for seed in range(3):
            assert torch.equal(flux.run(steps=STEPS, seed=seed), full[seed])
            states.append((handle.tuning.state, handle.tuning.pictures))
        assert states == [("measuring", 1), ("measuring", 2), ("ready", 3)]
        first = flux.run(steps=STEPS, seed=4)
        assert not torch.equal(first, full[4])
        flux.run(steps=STEPS, seed=3)
        assert torch.equal(flux.run(steps=STEPS, seed=4), first)
        assert len({event.step for event in handle.events if event.run == 4 and not event.reused}) == STEPS // 2
    assert torch.equal(flux.run(steps=STEPS, seed=4), full[4])


def test_the_plan_is_closer_than_the_untuned_default(flux: Tiny) -> None:
    full = pictures(flux, 8)

    def errors() -> list[float]:
        made = [flux.run(steps=STEPS, seed=seed) for seed in range(4, 8)]
        return [float((a - b).norm() / b.norm()) for a, b in zip(made, full[4:], strict=True)]

    with omnireuse.enable(flux.pipe, tune=False):
        untuned = errors()
    with omnireuse.enable(flux.pipe) as handle:
        pictures(flux, 3)
        tuned = errors()
        expected = handle.tuning.expected
    assert sum(tuned) < 0.7 * sum(untuned)
    assert expected is not None
    assert 0.2 < expected / (sum(tuned) / len(tuned)) < 5


def test_nothing_of_the_caller_is_changed_by_a_trial_run(flux: Tiny) -> None:
    latents = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(7)
    seen: list[int] = []

    def callback(pipe: Any, step: int, timestep: Any, values: dict[str, Any]) -> dict[str, Any]:
        seen.append(step)
        return values

    def run() -> torch.Tensor:
        return flux.run(steps=STEPS, generator=generator, latents=latents, callback_on_step_end=callback)

    def states() -> list[Any]:
        return [
            torch.get_rng_state().tolist(),
            generator.get_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        ]

    kept = latents.clone()
    with omnireuse.enable(flux.pipe, tune=TuneOptions(heartbeat=False)) as handle:
        for _ in range(3):
            before = states()
            run()
            assert states() == before
        assert handle.tuning.state == "ready"
    assert torch.equal(latents, kept)
    assert seen == list(range(STEPS)) * 3


def test_noise_of_the_global_generator_repeats_in_trial_runs(flux: Tiny) -> None:
    torch.manual_seed(3)
    full = [flux.run(steps=STEPS, generator=None) for _ in range(4)]
    torch.manual_seed(3)
    with omnireuse.enable(flux.pipe) as handle:
        made = [flux.run(steps=STEPS, generator=None) for _ in range(3)]
        assert handle.tuning.state == "ready", handle.tuning
    assert all(torch.equal(a, b) for a, b in zip(made, full, strict=False))


def test_each_picture_of_a_batch_counts(flux: Tiny) -> None:
    full = flux.run(steps=STEPS, batch=3)
    counted = Counted(flux.pipe.transformer)
    with omnireuse.enable(flux.pipe) as handle:
        calls = counted.during(lambda: flux.run(steps=STEPS, batch=3))
        assert 2 * STEPS < calls <= 4 * STEPS, "the trial runs follow"
        assert (handle.tuning.state, handle.tuning.pictures) == ("ready", 3)
        second = flux.run(steps=STEPS, batch=3)
        assert not torch.equal(second, full)
        assert torch.equal(flux.run(steps=STEPS, batch=3), second)
        # Batches of another size follow the same plan.
        flux.run(steps=STEPS, batch=1)
        assert handle.tuning.state == "ready"


def test_the_next_process_reuses_from_its_first_picture_on(flux: Tiny, cache: Path) -> None:
    with omnireuse.enable(flux.pipe) as handle:
        pictures(flux, 3)
        later = flux.run(steps=STEPS, seed=9)
        path = handle.tuning.path
    assert path is not None
    assert Path(path).is_relative_to(cache)
    again = tiny_flux()
    with omnireuse.enable(again.pipe) as handle:
        assert torch.equal(again.run(steps=STEPS, seed=9), later)
        assert (handle.tuning.state, handle.tuning.path) == ("ready", path)
    assert Profile.load(path).plans[STEPS // 2].evidence is not None


def test_a_damaged_record_of_full_runs_is_measured_anew(
    flux: Tiny, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with omnireuse.enable(flux.pipe):
        flux.run(steps=STEPS)
    (file,) = (cache / "measured").glob("*.json")
    other = json.loads(file.read_text("utf-8"))
    other["runs"][0][0][0] = 7  # the first number of the shape
    for damage in (file.read_text("utf-8")[:1000], json.dumps(other)):
        file.write_text(damage, "utf-8")
        caplog.clear()
        with omnireuse.enable(flux.pipe) as handle:
            flux.run(steps=STEPS)
            assert (handle.tuning.state, handle.tuning.pictures) == ("measuring", 1)
        assert "full runs are measured anew" in caplog.text


def test_a_failed_picture_leaves_what_earlier_processes_measured(flux: Tiny, cache: Path) -> None:
    with omnireuse.enable(flux.pipe):
        flux.run(steps=STEPS)

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    with omnireuse.enable(flux.pipe) as handle:
        with pytest.raises(KeyboardInterrupt):
            flux.run(steps=STEPS, callback_on_step_end=fails)
        assert list(cache.rglob("*.json"))
        flux.run(steps=STEPS)
        assert handle.tuning.pictures == 2


def test_a_plan_for_other_arguments_is_said_where_these_are_measured(
    flux: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "omnireuse"), omnireuse.enable(flux.pipe, tune=1) as handle:
        pictures(flux, 2)
        assert handle.tuning.state == "ready"
        assert "tuning has ended for calls with " in caplog.text
        flux.run(steps=STEPS, true_cfg_scale=7.5)
        assert "a plan is kept for true_cfg_scale=" in handle.tuning.near
        assert "and this call has true_cfg_scale=7.5" in caplog.text


def test_other_weights_never_follow_the_plan(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe):
        pictures(flux, 3)
    with torch.no_grad():
        flux.pipe.transformer.transformer_blocks[0].ff.net[0].proj.weight.mul_(1.001)
    full = flux.run(steps=STEPS)
    with omnireuse.enable(flux.pipe) as handle:
        assert torch.equal(flux.run(steps=STEPS), full)
        assert handle.tuning.state == "measuring"


def test_each_configuration_is_measured_by_itself(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe) as handle:
        pictures(flux, 3)
        assert handle.tuning.state == "ready"
        for call in ({"steps": STEPS + 2}, {"true_cfg_scale": 2.5}, {"guided": False}):
            flux.run(**({"steps": STEPS} | call))
            assert handle.tuning.state == "measuring", call
        flux.run(steps=STEPS)
        assert handle.tuning.state == "ready"


@pytest.mark.parametrize("is_one_process", [True, False])
def test_a_user_who_changes_guidance_with_every_picture_reuses(flux: Tiny, is_one_process: bool) -> None:
    states, pipeline = [], flux
    with contextlib.ExitStack() as enabled:
        for scale in (2.0, 2.5, 3.0, 3.5, 4.0, 4.0, 3.5):
            if not states or not is_one_process:
                pipeline = flux if is_one_process else tiny_flux()
                enabled.close()
                handle = enabled.enter_context(omnireuse.enable(pipeline.pipe))
            pipeline.run(steps=STEPS, true_cfg_scale=scale)
            states.append((handle.tuning.state, 0.0 in handle.summary().last_run))
    measured, untuned = ("measuring", False), ("waiting", True)
    assert states == [measured] * 3 + [untuned] * 2 + [measured] * 2
    assert "3 other configurations are measured in part" not in handle.tuning.reason


def test_each_target_has_a_plan_of_its_own_in_one_file(flux: Tiny) -> None:
    paths = set()
    for count in (12, 8):
        with omnireuse.enable(flux.pipe, computed_steps=count) as handle:
            pictures(flux, 3)
            flux.run(steps=STEPS)
            paths.add(handle.tuning.path)
            assert len({event.step for event in handle.events if event.run == 4 and not event.reused}) == count
    (path,) = paths
    assert path is not None
    assert set(Profile.load(path).plans) == {8, 12}


def test_a_disk_that_refuses_keeps_plans_in_memory(flux: Tiny, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_text("a file where the folder should be", "utf-8")
    with caplog.at_level(logging.WARNING, logger="omnireuse"), omnireuse.enable(flux.pipe) as handle:
        pictures(flux, 4)
        assert handle.tuning.state == "ready"
        assert handle.tuning.path is None
        assert "memory only" in str(handle.tuning)
    assert "memory only" in caplog.text


def test_one_process_measures_at_a_time(flux: Tiny) -> None:
    full = flux.run(steps=STEPS)
    other = tiny_flux()
    with omnireuse.enable(flux.pipe), omnireuse.enable(other.pipe) as handle:
        flux.run(steps=STEPS)
        # Locks belong to a store, so a second handle stands for a second process.
        assert not torch.equal(other.run(steps=STEPS), full), "it reuses untuned"
        assert handle.tuning.state == "waiting"
        assert "another pipeline or process" in str(handle.tuning)
        tuned = [flux.run(steps=STEPS, seed=seed) for seed in (1, 2, 3)][-1]
        assert torch.equal(other.run(steps=STEPS, seed=3), tuned), "and follows the plan once it is there"
        assert handle.tuning.state == "ready"


def test_short_runs_follow_what_trial_runs_show(flux: Tiny) -> None:
    full = [flux.run(steps=8, seed=seed) for seed in range(5)]
    with omnireuse.enable(flux.pipe) as handle:
        made = [flux.run(steps=8, seed=0)]
        assert str(handle.tuning).endswith("reuse begins if trial runs find a plan that is close enough")
        made += [flux.run(steps=8, seed=seed) for seed in range(1, 5)]
        assert handle.tuning.state == "ready"
        computed = {event.step for event in handle.events if event.run == 5 and not event.reused}
    assert all(torch.equal(a, b) for a, b in zip(made[:3], full, strict=False))
    assert len(computed) in (4, 8)
    if len(computed) == 4:
        assert float((made[4] - full[4]).abs().sum() / full[4].abs().sum()) < 0.2


def test_untuned_is_as_before(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, tune=False) as handle:
        flux.run(steps=STEPS)
        assert handle.summary().reused_calls
        assert str(handle.tuning) == "tuning is off: tune=False"


def test_the_environment_turns_tuning_off(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for text in ("0", "False", " no ", "off"):
        monkeypatch.setenv("OMNIREUSE_TUNE", text)
        with omnireuse.enable(flux.pipe, tune=True) as handle:
            assert handle.tuning.state == "off"
            assert "OMNIREUSE_TUNE" in str(handle.tuning)
    monkeypatch.setenv("OMNIREUSE_TUNE", "perhaps")
    with caplog.at_level(logging.WARNING, logger="omnireuse"), omnireuse.enable(flux.pipe) as handle:
        assert handle.tuning.state == "measuring"
    assert "perhaps" in caplog.text


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tune": 0}, ConfigError, "at least 1 picture"),
        ({"tune": -2}, ConfigError, "at least 1 picture"),
        ({"tune": "yes"}, ConfigError, "tune must be True, False"),
        ({"tune": 2.5}, ConfigError, "tune must be True, False"),
        ({"tune": True, "backend": "tea_cache"}, ConfigError, "backend has chosen"),
        ({"tune": 3, "policy": "fixed"}, ConfigError, "policy has chosen"),
        ({"tune": True, "profile": "profile.json"}, ConfigError, "profile has chosen"),
    ],
)
def test_bad_arguments_are_refused_at_once(
    flux: Tiny, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        omnireuse.enable(flux.pipe, **options)
    assert omnireuse.handle_of(flux.pipe) is None


@pytest.mark.parametrize(
    ("said", "then"),
    [
        ({"pictures": 2}, "reuse begins once trial runs have chosen a plan"),
        ({"pictures": 3}, "the untuned default is used until trial runs have chosen a plan"),
        ({"pictures": 3, "computes_all": True}, "reuse begins once trial runs have chosen a plan"),
        ({"pictures": 3, "is_sure": False}, "reuse begins if trial runs find a plan that is close enough"),
    ],
)
def test_measuring_says_what_follows(said: dict[str, Any], then: str) -> None:
    measuring = omnireuse.Tuning(state="measuring", wanted=3, reason="not done", **said)
    assert str(measuring) == f"measuring: {said['pictures']} of 3 pictures measured (not done); {then}"


def test_the_summary_says_what_is_happening(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="omnireuse"), omnireuse.enable(flux.pipe) as handle:
        pictures(flux, 2)
        expected = "measuring: 2 of 3 pictures measured; reuse begins once trial runs have chosen a plan"
        assert expected in str(handle.summary())
        assert "while the pipeline was measured" in str(handle.summary())
        pictures(flux, 2)
        assert "tuned: 12 of 24 steps computed" in str(handle.summary())
    lines = [record.getMessage() for record in caplog.records if "tuning" in record.getMessage()]
    begun, ended = lines
    assert begun.startswith("tuning begins for runs of 24 steps:")
    assert ended.startswith("tuning has ended for calls with ")
    assert handle.summary().runs == 4, "trial runs are counted nowhere"


@pytest.mark.parametrize(
    "scheduler",
    [
        EulerAncestralDiscreteScheduler,
        pytest.param(DDIMScheduler, marks=pytest.mark.sweep),
    ],
)
def test_solvers_with_and_without_noise_are_tuned(scheduler: Any) -> None:
    tiny = tiny_sd()
    tiny.pipe.scheduler = scheduler.from_config(tiny.pipe.scheduler.config)
    full = pictures(tiny, 4)
    with omnireuse.enable(tiny.pipe) as handle:
        made = pictures(tiny, 4)
        assert handle.tuning.state == "ready", handle.tuning
    assert all(torch.equal(a, b) for a, b in zip(made[:3], full, strict=False))


def test_the_plan_serves_as_a_profile_too(flux: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    with omnireuse.enable(flux.pipe) as handle:
        made = pictures(flux, 4)[-1]
        profile = handle.tuned_profile
    caplog.clear()
    with omnireuse.enable(flux.pipe, profile=profile, computed_steps=STEPS // 2) as handle:
        assert torch.equal(flux.run(steps=STEPS, seed=3), made)
        assert "fell back" not in str(handle.summary())
    assert "in place of" not in caplog.text


@pytest.mark.parametrize(("scale", "is_guided"), [("3.0", True), ("1.0", False), ("None", False)])
def test_a_profile_names_a_negative_prompt_where_guidance_acts(flux: Tiny, scale: str, is_guided: bool) -> None:
    configuration = Configuration(
        pipeline="FluxPipeline",
        conditions=watch_of(flux.pipe).now(),
        scheduler="FlowMatchEulerDiscreteScheduler",
        noises=(1.0, 0.5),
        call={"true_cfg_scale": scale},
        shape=(4, 4),
    )
    profile = configuration.profile({}, coordinates=(1.0, 0.5), num_prompts=(3, 0), cost_in_runs=4.0, command="a test")
    assert ("negative_prompt" in profile.call) is is_guided


def test_ahead_of_time_the_plan_is_found_before_anybody_waits(flux: Tiny) -> None:
    call = flux.inputs(guided=True, batch=1)
    embeds = {name: value for name, value in call.items() if name.endswith("embeds")}

    class Prompted(type(flux.pipe)):  # type: ignore[misc]  # diffusers is untyped
        def __call__(self, prompt: str, num_inference_steps: int = STEPS, generator: Any = None, **more: Any) -> Any:
            return super().__call__(num_inference_steps=num_inference_steps, generator=generator, **embeds, **more)

    flux.pipe.__class__ = Prompted
    rest = {name: value for name, value in call.items() if name not in embeds} | {"output_type": "latent"}
    rest.pop("output_type")
    for count in (12, 8):
        profile = omnireuse.tune(flux.pipe, ["a", "b", "c"], computed_steps=count, progress=False, **rest)
        assert [*profile.plans] == [count]
    assert omnireuse.handle_of(flux.pipe) is None
    with omnireuse.enable(flux.pipe) as handle:
        flux.pipe("d", generator=torch.Generator().manual_seed(5), **rest)
        assert handle.tuning.state == "ready"
    with pytest.raises(ConfigError, match="at least one text"):
        omnireuse.tune(flux.pipe, [])
