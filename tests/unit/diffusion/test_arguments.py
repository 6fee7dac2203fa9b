"""Mistakes in a call of `omnireuse.enable` are told in words of the argument that was given, with what to write."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import Blend, EveryNth, Never, TeaCache
from omnireuse.errors import ConfigError, OmniReuseError, UnknownNameError, WrongTypeError
from omnireuse.loop.strategy import Strategy
from omnireuse.profiles.target import TARGETS, Target
from tests import TOP

Case = tuple[type[OmniReuseError], str, tuple[Any, ...], dict[str, Any]]


def bad(says: str, *positional: Any, **keywords: Any) -> Case:
    return ConfigError, says, positional, keywords


def unknown(says: str, *positional: Any, **keywords: Any) -> Case:
    return UnknownNameError, says, positional, keywords


def mistyped(says: str, *positional: Any, **keywords: Any) -> Case:
    return WrongTypeError, says, positional, keywords


NEVER = Strategy(policy=Never())
MISTAKES = [
    unknown("unknown option of enable 'speed_up'; did you mean 'speedup'", speed_up=2),
    unknown("did you mean 'region'", regoin="call"),
    unknown("unknown region 'block'; did you mean 'blocks'", region="block"),
    unknown("did you mean 'rel_l1_thresh'", rel_l1_tresh=0.2),
    unknown("did you mean 'rel_l1_thresh'", "tea_cache", threshold=0.2),
    unknown("'mag_cache' has it", "tea_cache", mag_threshold=0.2),
    unknown("unknown cache backend 'teacache'; did you mean 'tea_cache'", "teacache"),
    unknown("did you mean 'fixed'", policy="fixd"),
    unknown("did you mean 'hold'", policy="fixed", forecaster="hald"),
    unknown("did you mean 'x0'", policy="fixed", prediction_target="x1"),
    unknown("did you mean 'latents'", policy="fixed", signal="latent"),
    mistyped("speedup='2'): speedup must be a number", speedup="2"),
    mistyped("got the text '2x'; write speedup=2", speedup="2x"),
    mistyped("write computed_steps=5", computed_steps="5"),
    mistyped(
        "quality must be a PSNR in dB of at least 15 and at most 100, such as 40, got the text '4 dB'", quality="4 dB"
    ),
    mistyped("write tolerance=0.05", tolerance="5%"),
    mistyped("profile must be what omnireuse.calibrate returned, or its file", profile=3),
    mistyped("enable(pipeline, 2.0): the second argument must be the name of a cache backend", 2.0),
    mistyped("for 2 times fewer steps write speedup=2, for a number of steps computed_steps=", 2),
    mistyped("got a bool; known: cache_dit", True),
    mistyped("write profile='a.json'", Path("a.json")),
    mistyped("write policy=Never()", Never()),
    mistyped("write forecaster=Blend(order=1, corrects=None, holds_misses=None, exponent=None)", Blend()),
    mistyped("its options as keywords", {"rel_l1_thresh": 0.2}),
    mistyped("got the class EveryNth; write policy=EveryNth()", policy=EveryNth),
    mistyped("policy must be a policy", policy=7),
    mistyped("forecaster must be a forecaster", policy="fixed", forecaster=Never()),
    bad("write enable(pipeline, 'tea_cache', rel_l1_thresh=0.2)", rel_l1_thresh=0.2),
    bad("told its number of steps when it is called", num_inference_steps=9),
    bad("when it is called; to compute that many of them, write computed_steps=14", steps=14),
    bad("write policy=Steps(steps=(0, 3))", steps=(0, 3)),
    bad("write policy=omnireuse.Spread(speedup=2.0)", policy="spread"),
    bad("write policy=omnireuse.Steps(steps=(0, 2, 5))", policy="steps"),
    bad("'mag_cache' is a cache backend, no policy", policy="mag_cache"),
    bad("at least 1 (all steps divided by computed steps), got 0.5", speedup=0.5),
    bad("enable(computed_steps=0): computed_steps must be a whole number of at least 1, got 0", computed_steps=0),
    bad("computed_steps must be at least 2 without a profile", computed_steps=1),
    bad("above 0 and below 1, such as 0.05 for 5 %, got 5", tolerance=5),
    *(bad("tolerance must be a relative error", tolerance=value) for value in (0, -1, math.nan, math.inf)),
    mistyped("tolerance must be a relative error", tolerance=True),
    *(
        bad("give one of tolerance and", tolerance=0.1, **{name: 30})
        for name in ("speedup", "quality", "computed_steps")
    ),
    bad("give one of tolerance and", tolerance=0.1, profile="a.json"),
    bad("give one of speedup and computed_steps, not both", speedup=2, computed_steps=3),
    bad("speedup must be a number of at least 1", speedup=math.nan),
    bad("only be promised by a profile", quality=35),
    bad("chooses the whole strategy", speedup=2, policy="never"),
    bad("chooses the whole strategy", speedup=2, backend="tea_cache"),
    bad("so signal cannot be given with it", speedup=2, signal="none"),
    bad("cannot be read", profile="nowhere.json"),
    bad("write profile='a.json'", "a.json"),
    bad("the Strategy chooses its region itself", NEVER, region="call"),
    bad("give either a backend or a policy", NEVER, policy="fixed"),
    bad("so a backend cannot be given with it", NEVER, speedup=2),
    bad("write enable(pipeline, Strategy(policy=…, per_sample=False))", per_sample=False),
    bad("shared_cfg_decision is a field of Strategy", policy="fixed", shared_cfg_decision=True),
    bad("'fixed' is a policy, no cache backend; write policy='fixed'", "fixed"),
    bad("write backend='taylorseer' or forecaster='taylorseer'", policy="taylorseer"),
    bad("write policy=EveryNth(warmup=2)", policy="fixed", warmup=2),
    bad("policy=Spread(speedup=2)", policy="fixed", speedup=2),
    bad("policy=ErrorControl(tolerance=0.1)", policy="error_control", tolerance=0.1),
    bad("forecaster=Polynomial(order=2)", policy="fixed", forecaster="polynomial", order=2),
    bad("warmup is a field of the policy EasyCache or EveryNth or SeaCache or Spread", warmup=2),
    bad("so prediction_target cannot be given with it", speedup=2, prediction_target="x0"),
    bad("the backend 'tea_cache' chooses its region itself", "tea_cache", region="call"),
    bad("rel_l1_thresh must be a finite number above 0", "tea_cache", rel_l1_thresh=math.nan),
    bad("either a backend or a policy", "tea_cache", policy="fixed"),
    bad("prediction_target must be x0 or output in region 'step'", policy="fixed", prediction_target="residual"),
    bad("target must be residual or output", policy="fixed", region="blocks", prediction_target="x0"),
    bad("signal must not be 'none'", policy=TeaCache(), signal="none"),
    bad("replace(Strategy.default(speedup=2), forecaster=…))", forecaster="hold"),
    bad("write enable(pipeline, speedup=2, region='step')", region="step"),
    bad("region must be 'step' or 'call' beside a target, got 'blocks'", speedup=2, region="blocks"),
    bad("region must be 'step' or 'call' beside a target, got 'blocks'", tolerance=0.5, region="blocks"),
]


@pytest.mark.parametrize(("error", "says", "positional", "keywords"), MISTAKES)
def test_a_mistake_names_its_remedy_before_anything_happens(
    error: type[OmniReuseError], says: str, positional: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    pipe = SimpleNamespace(transformer=torch.nn.Linear(2, 2), scheduler=FlowMatchEulerDiscreteScheduler())
    with pytest.raises(error) as caught:
        omnireuse.enable(pipe, *positional, **keywords)
    assert says in str(caught.value)
    assert type(pipe.transformer) is torch.nn.Linear
    assert omnireuse.handle_of(pipe) is None


def test_a_name_in_place_of_a_pipeline_is_told_to_be_loaded() -> None:
    with pytest.raises(WrongTypeError, match=r"pipeline must be a loaded pipeline.*from_pretrained"):
        omnireuse.enable("black-forest-labs/FLUX.1-dev")


def test_an_error_of_many_names_lists_few_and_survives_pickle() -> None:
    error = UnknownNameError("option", "speed_up", ["speedup", "sea_thresh"], listed=["speedup"])
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert str(each) == "unknown option 'speed_up'; did you mean 'speedup'?; known: speedup"


GOOD = """
import omnireuse
pipe: object = None
omnireuse.enable(pipe)
omnireuse.enable(pipe, speedup=2)
omnireuse.enable(pipe, profile="a.json", quality=40, region="call")
omnireuse.enable(pipe, "tea_cache", rel_l1_thresh=0.2, profile="a.json")
omnireuse.enable(pipe, policy="fixed", forecaster="hold", region="tail", signal="none")
omnireuse.enable(pipe, omnireuse.Strategy(policy=omnireuse.Never(), first_blocks=2, region="tail"))
omnireuse.enable(pipe, policy=omnireuse.EveryNth(every=2), forecaster=omnireuse.Blend())
omnireuse.errors.ConfigError("")
"""
BAD = """\
omnireuse.enable(pipe, speed_up=2)
omnireuse.enable(pipe, speedup="2")
omnireuse.enable(pipe, 2.0)
omnireuse.enable(pipe, "teacache")
omnireuse.enable(pipe, "tea_cache", rel_l1_tresh=0.2)
omnireuse.enable(pipe, policy="fixed", warmup=2)
omnireuse.enable(pipe, policy="fixed", region="block")
omnireuse.enable(pipe, speedup=2, region="blocks")
omnireuse.enable(pipe, policy="fixed", shared_cfg_decision=True)
"""


@pytest.mark.slow
def test_a_type_checker_finds_the_same_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "calls.py"
    file.write_text(GOOD + BAD, "utf-8")
    options = ["--strict", "--no-error-summary", "--config-file", str(TOP / "pyproject.toml")]
    command = [sys.executable, "-m", "mypy", *options, str(file)]
    done = subprocess.run(command, cwd=TOP, capture_output=True, encoding="utf-8", check=False)
    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line and file.name in line}
    first = GOOD.count("\n") + 1
    assert wrong == set(range(first, first + BAD.count("\n"))), done.stdout + done.stderr


# -- what is asked for, as one value -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "default"),
        ({"speedup": 2.5}, "2.5x fewer steps"),
        ({"computed_steps": 14.0}, "14 computed steps"),
        ({"quality": 40}, "quality 40 dB"),
        ({"tolerance": 0.05}, "tolerance 0.05 of the final latents"),
    ],
)
def test_it_is_what_was_given(given: dict[str, Any], words: str) -> None:
    target = Target.of("here", **{**dict.fromkeys(TARGETS), **given})
    assert (str(target), target.keywords, bool(target)) == (words, given, bool(given))
    assert target.quality == given.get("quality")
    assert target.tolerance == given.get("tolerance")
    assert target.is_of_results == bool({"quality", "tolerance"} & given.keys())


def test_it_is_one_and_its_place_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^here: give one of quality and speedup, not both$"):
        Target.of("here", quality=40, speedup=2)
    with pytest.raises(ConfigError, match=r"^here\(speedup=0\.5\): speedup must be a number of at least 1"):
        Target.of("here", speedup=0.5)
