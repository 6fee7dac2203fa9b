"""`enable(learn=True)`: schedules planned anew from the errors of the runs themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Blend, Decision, FixedSchedule, Profile, Strategy
from omnireuse.diffusion.reuse import learning
from omnireuse.diffusion.reuse.learning import Learner, Lesson
from omnireuse.diffusion.reuse.noise import NoiseLevel
from omnireuse.errors import ConfigError, StateError, WrongTypeError
from tests.helpers.tiny import TINY, Tiny

STEPS = 12
LEVELS = [
    NoiseLevel(sigma=1 - i / STEPS, coordinate=1 - i / STEPS, sample_weight=1.0, output_weight=-(1 - i / STEPS))
    for i in range(STEPS)
]
DEFAULT = (0, 2, 4, 6, 8, 11)
STRATEGY = Strategy(policy=FixedSchedule(steps=DEFAULT), forecaster=Blend())


def late(step: int) -> float:
    """Errors of x0 that are large at the end of a run."""
    return math.exp(step / 3) / LEVELS[step].coordinate


def begin(learner: Learner, guidance: str = "5.0") -> Lesson:
    lesson = learner.begin(STRATEGY, LEVELS, "Scheduler", (("guidance_scale", guidance),))
    assert lesson is not None
    return lesson


def computed_by(lesson: Lesson) -> list[int]:
    computed = lesson.strategy.policy.schedule(STEPS)
    assert computed is not None
    return sorted(computed)


def decisions(lesson: Lesson, errors: Mapping[int, float]) -> list[Decision]:
    computed = computed_by(lesson)
    return [
        Decision(
            run=1,
            step=step,
            total=STEPS,
            branch="step",
            reused=step not in computed,
            reason="policy",
            sigma=None,
            drift=None,
            error=errors[step] if step and step in computed else None,
            host_seconds=0.0,
        )
        for step in range(STEPS)
    ]


def play(learner: Learner, runs: int, error: Any = late) -> None:
    for _ in range(runs):
        lesson = begin(learner)
        hear = lesson.heard_by(lambda _: None)
        for decision in decisions(lesson, {step: error(step) for step in range(STEPS)}):
            hear(decision)
        lesson.end()


def test_the_plan_is_the_best_near_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside every schedule within reach, with the errors of gaps written out."""
    monkeypatch.setattr(learning, "LEAST_GAIN", 0.01)
    learner = Learner(print)
    play(learner, learning.FIRST_PLAN)
    difficulty = {
        step: math.log(late(j) * LEVELS[j].coordinate)
        - learning.GROWTH_IN_GAP * math.log(LEVELS[i].coordinate - LEVELS[j].coordinate)
        for i, j in pairwise(DEFAULT)
        for step in range(i + 1, j + 1)
    }

    def left(schedule: tuple[int, ...]) -> float:
        total = 0.0
        for i, j in pairwise(schedule):
            mean = sum(difficulty[step] for step in range(i + 1, j + 1)) / (j - i)
            total += (
                sum(
                    math.exp(mean + learning.GROWTH_TO_END * LEVELS[t].coordinate)
                    * (LEVELS[i].coordinate - LEVELS[t].coordinate) ** learning.GROWTH_IN_GAP
                    / STEPS
                    / LEVELS[t].coordinate
                    for t in range(i + 1, j)
                )
                ** 2
            )
        return total

    near = [
        (0, *inner, 11)
        for inner in combinations(range(1, 11), 4)
        if all(abs(a - b) <= learning.REACH for a, b in zip(inner, DEFAULT[1:-1], strict=True))
    ]
    best = min(near, key=left)
    learned = learner.learned()
    assert learned is not None
    assert best != DEFAULT
    assert learned.schedule == best
    assert computed_by(begin(learner)) == list(best)
    assert learned.gain == pytest.approx(10 * math.log10(left(DEFAULT) / left(best)))
    assert (learned.runs, learned.changes, learned.kinds) == (learning.FIRST_PLAN, 1, 1)


def test_too_small_a_gain_keeps_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "LEAST_GAIN", 100.0)
    learner = Learner(print)
    play(learner, learning.LONGEST_WAIT)
    learned = learner.learned()
    assert learned is not None
    assert (learned.schedule, learned.changes, learned.gain) == (DEFAULT, 0, 0.0)
    assert begin(learner).strategy is STRATEGY


def test_the_default_returns_where_its_rival_gains_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "LEAST_GAIN", 0.01)
    learner = Learner(print)
    play(learner, learning.FIRST_PLAN)
    assert computed_by(begin(learner)) != list(DEFAULT)
    monkeypatch.setattr(learning, "LEAST_GAIN", 100.0)
    play(learner, learning.FIRST_PLAN)
    learned = learner.learned()
    assert learned is not None
    assert (learned.schedule, learned.changes, learned.gain) == (DEFAULT, 2, 0.0)
    assert begin(learner).strategy is STRATEGY


def test_runs_at_the_same_time_and_interrupted_ones_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "LEAST_GAIN", 0.01)
    apart, mixed = Learner(print), Learner(print)
    play(apart, learning.FIRST_PLAN)
    lessons = [begin(mixed) for _ in range(learning.FIRST_PLAN + 1)]
    for each in zip(*(decisions(lesson, {s: late(s) for s in range(STEPS)}) for lesson in lessons), strict=True):
        for lesson, decision in zip(lessons, each, strict=True):
            lesson.heard_by(lambda _: None)(decision)
    for lesson in lessons[1:]:
        lesson.end()
    assert mixed.learned() == apart.learned()


def test_other_guidance_learns_by_itself() -> None:
    learner = Learner(print)
    play(learner, 3)
    begin(learner, "1.0").end()
    learned = learner.learned()
    assert learned is not None
    assert (learned.runs, learned.kinds) == (1, 2)
    assert "2 kinds" in str(learned)


def test_unknown_noise_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    told_to: list[str] = []
    learner = Learner(told_to.append)
    levels = [NoiseLevel(sigma=None, coordinate=float(i)) for i in range(STEPS)]
    for _ in range(2):
        assert learner.begin(STRATEGY, levels, "Odd", ()) is None
    (told,) = caplog.messages
    assert "nothing is learnt from runs with Odd" in told
    assert told_to == ["the default's schedule"] * 2


def test_pictures_are_the_defaults_until_the_schedule_changes_and_then_follow_it(
    flux: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(learning, "LEAST_GAIN", 0.01)
    with omnireuse.enable(flux.pipe, speedup=3):
        default = flux.run(steps=24)
    made: list[list[torch.Tensor]] = []
    for _ in range(2):
        with omnireuse.enable(flux.pipe, speedup=3, learn=True) as handle:
            made.append([flux.run(steps=24) for _ in range(learning.FIRST_PLAN + 1)])
            learned = handle.summary().learned
            profile = handle.freeze()
            flux.run(steps=24)
        assert learned is not None
        assert learned.changes == 1
        assert sorted({e.step for e in handle.events[-24:] if not e.reused}) == list(learned.schedule)
        frozen = handle.summary().learned
        assert frozen is not None
        assert (frozen.runs, frozen.is_frozen) == (learned.runs, True)
        assert "now frozen" in str(handle.summary())
    for one, other in zip(*made, strict=True):
        assert torch.equal(one, other)
    for picture in made[0][:-1]:
        assert torch.equal(picture, default)
    assert not torch.equal(made[0][-1], default)
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile
    with omnireuse.enable(flux.pipe, profile=tmp_path / "profile.json") as handle:
        assert torch.equal(flux.run(steps=24), made[0][-1])
        assert "not promised: the plan was not judged on held-out prompts" in str(handle.summary())
    profile.save_pretrained(tmp_path)
    assert "not judged" in profile._repr_html_()


@pytest.mark.parametrize("name", sorted(TINY))
def test_each_pipeline_learns_but_not_from_an_interrupted_run(name: str) -> None:
    tiny = TINY[name]()

    def interrupt(pipe: Any, index: int, *_: Any) -> dict[str, Any]:
        pipe._interrupt = index == 2
        return {}

    with omnireuse.enable(tiny.pipe, learn=True) as handle:
        with pytest.raises(StateError, match="has reused steps last"):
            handle.freeze()
        tiny.run(steps=24, callback_on_step_end=interrupt)
        assert handle.summary().learned is None
        tiny.run(steps=24)
        tiny.run(steps=26)
        tiny.run(steps=24, guidance_scale=2.5)
        tiny.run(steps=24)
        learned = handle.summary().learned
    assert learned is not None
    assert (learned.runs, learned.kinds) == (2, 3)


def test_a_frozen_default_of_more_than_half_of_the_steps_is_enabled_without_a_target(flux: Tiny) -> None:
    with omnireuse.enable(flux.pipe, learn=True) as handle:
        flux.run(steps=20)
        profile = handle.freeze()
    assert [*profile.plans] == [12]
    with omnireuse.enable(flux.pipe, profile=profile) as reused:
        flux.run(steps=20)
    assert reused.summary().computed_steps == 12


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learn": 1}, WrongTypeError, "learn must be True or False, got"),
        ({"tolerance": 0.1}, ConfigError, "so tolerance cannot be given with it"),
        ({"profile": "p.json"}, ConfigError, "so profile cannot be given with it"),
        ({"quality": 40}, ConfigError, "so quality cannot be given with it"),
        ({"policy": "fixed"}, ConfigError, "so policy cannot be given with it"),
        ({"backend": "tea_cache"}, ConfigError, "so backend cannot be given with it"),
    ],
)
def test_what_cannot_learn_is_refused(
    flux: Tiny, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        omnireuse.enable(flux.pipe, **{"learn": True, **options})
    assert omnireuse.handle_of(flux.pipe) is None
