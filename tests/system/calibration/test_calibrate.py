"""From prompts to a profile and back into a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import omnireuse
from omnireuse import Profile
from omnireuse.calibration.runs import PromptRuns
from omnireuse.errors import ConfigError, StateError
from omnireuse.tuning.search import Candidate
from reference.load import SAMPLING, load_image_pipeline

PROMPTS = [
    "a large red circle in the top left on a plain gray background",
    "a small blue cross left of a large white square on a dotted teal background",
    "a large green triangle on a plain black background",
]
CALL = {name: value for name, value in SAMPLING.items() if name != "num_inference_steps"}


@pytest.fixture(scope="module")
def pipeline() -> Any:
    pipe = load_image_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def profile(pipeline: Any) -> Profile:
    return omnireuse.calibrate(pipeline, PROMPTS, steps=8, computed_steps=[4, 6], batch_size=2, **CALL)


def test_a_profile_holds_a_plan_for_each_budget(profile: Profile) -> None:
    assert sorted(profile.plans) == [4, 6]
    for count, plan in profile.plans.items():
        assert len(plan.steps) == count
        assert len(plan.held_out) == 1
    assert profile.num_prompts == (2, 1)
    assert profile.complete
    assert profile.model == "FluxTransformer2DModel"
    assert profile.cost_in_runs > 3


def test_a_search_is_never_worse_than_what_it_starts_from(pipeline: Any, profile: Profile) -> None:
    runs = PromptRuns(pipeline, PROMPTS[:2], seed=0, call={"num_inference_steps": 8, **CALL})
    schedule = omnireuse.Spread(num_computed=4, power=1.7).schedule(8)
    default = omnireuse.Strategy(policy=omnireuse.Steps(steps=tuple(sorted(schedule))), forecaster=omnireuse.Blend())
    runs.full_run(range(2))
    given = runs.score(default, range(2))
    assert profile.plans[4].psnr >= sum(given) / 2 - 1e-6


def test_a_profile_survives_its_file_and_decides(pipeline: Any, profile: Profile, tmp_path: Path) -> None:
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile
    with omnireuse.enable(pipeline, profile=tmp_path / "profile.json", computed_steps=4) as handle:
        pipeline(PROMPTS[0], **SAMPLING | {"num_inference_steps": 8})
    assert handle.summary().computed_steps == 4
    assert sorted({event.step for event in handle.events if not event.reused}) == list(profile.plans[4].steps)
    with omnireuse.enable(pipeline, profile=profile, speedup=2) as handle:
        pipeline(PROMPTS[0], **SAMPLING | {"num_inference_steps": 12})
    assert handle.summary().computed_steps == 6, "half of the steps of another length too"


def test_a_quality_takes_the_cheapest_plan_that_promises_it(pipeline: Any, profile: Profile) -> None:
    plan = profile.plans[4]
    plans = {4: replace(plan, held_out=(30.0,) * 5), 5: replace(plan, held_out=(40.0,) * 5)}
    made = replace(profile, plans={**plans, 6: replace(plan, held_out=(38.0, 40.0, 42.0, 44.0, 46.0))})
    # ISO 16269-6 has this factor for five values, 90 % coverage and 95 % confidence.
    assert made.plans[6].promised == pytest.approx(42 - 3.407 * 10**0.5, abs=0.01)
    assert made.best(quality=30) == made.plans[4]
    assert made.best(quality=34) == made.plans[5]
    assert made.best(quality=40) == made.plans[5]
    with pytest.raises(ConfigError, match=r"no plan grants it.*4 computed steps"):
        omnireuse.enable(pipeline, profile=made, quality=99)
    with pytest.raises(ConfigError, match="at least 5 held-out prompts, and this profile was judged on 1"):
        omnireuse.enable(pipeline, profile=profile, quality=20)


def test_a_profile_refuses_another_pipeline(pipeline: Any, profile: Profile) -> None:
    for change in ({"model": "WanTransformer3DModel"}, {"config_digest": "0"}, {"scheduler": "DDIMScheduler"}):
        with pytest.raises(StateError, match="calibrate this pipeline"):
            omnireuse.enable(pipeline, profile=replace(profile, **change))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 7}', '{"format": 2, "plans": {"4": {}}}'])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile.json").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="calibrate anew"):
        Profile.load(tmp_path / "profile.json")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"prompts": []}, "at least two"),
        ({"prompts": "one text"}, "at least two"),
        ({"steps": 2}, "steps must be"),
        ({"computed_steps": [1]}, "from 2 to steps"),
        ({"computed_steps": [29]}, "from 2 to steps"),
        ({"computed_steps": 5}, r"computed_steps must be a list .* give \[5\]"),
        ({"computed_steps": "5"}, "='5'.*must be a list of one or more budgets"),
        ({"computed_steps": []}, "a list of one or more budgets"),
        ({"computed_steps": [3.5]}, "each a whole number"),
        ({"steps": 8, "num_inference_steps": 10}, "both say how many denoising steps"),
        ({"num_inference_steps": 2}, "num_inference_steps must be a whole number of at least 4"),
        ({"prompt": "a circle"}, "prompt is set by calibrate itself"),
        ({"generator": None}, "generator is set by calibrate itself"),
        ({"output_type": "pil"}, "output_type is set by calibrate itself"),
        ({"return_dict": False}, "return_dict is set by calibrate itself"),
        ({"fit_prompt": 3}, "did you mean 'fit_prompts'"),
        ({"true_cfg_scal": 3}, "unknown argument of FluxPipeline 'true_cfg_scal'; did you mean 'true_cfg_scale'"),
        ({"held_out": 1.0}, "held_out must be"),
        ({"fit_prompts": 0}, "fit_prompts must be"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(
    pipeline: Any, arguments: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PromptRuns, "full_run", lambda *_, **__: pytest.fail("work began"))
    with pytest.raises(ConfigError, match=complaint):
        omnireuse.calibrate(pipeline, **{"prompts": PROMPTS, **arguments})


def test_prompts_and_pipeline_in_the_wrong_order_are_told_in_a_sentence(pipeline: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        omnireuse.calibrate(PROMPTS, pipeline)
    assert "got a FluxPipeline" in str(caught.value)
    assert len(str(caught.value)) < 120, "the pipeline's JSON is not for an error"


def test_an_interrupt_keeps_what_was_found(
    pipeline: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = Candidate.follow

    def interrupted(candidate: Candidate, *args: Any, **kwargs: Any) -> Any:
        if len(candidate.steps) == 6:
            raise KeyboardInterrupt
        return follow(candidate, *args, **kwargs)

    monkeypatch.setattr(Candidate, "follow", interrupted)
    profile = omnireuse.calibrate(pipeline, PROMPTS, steps=8, computed_steps=[4, 6], batch_size=2, **CALL)
    assert not profile.complete
    assert sorted(profile.plans) == [4]
    assert "interrupted" in caplog.text
    omnireuse.enable(pipeline).disable()
