"""Mistakes in a call of `omnireuse.enable` are told in words of the argument that was given, with what to write."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import omnireuse
from omnireuse import Blend, EveryNth, Never
from omnireuse.errors import ConfigError, OmniReuseError, UnknownNameError, WrongTypeError
from omnireuse.loop.strategy import Strategy
from tests import TOP


@pytest.mark.parametrize(
    ("positional", "keywords", "error", "says"),
    [
        ([], {"speed_up": 2}, UnknownNameError, "unknown option of enable 'speed_up'; did you mean 'speedup'"),
        ([], {"regoin": "call"}, UnknownNameError, "did you mean 'region'"),
        ([], {"region": "block"}, UnknownNameError, "unknown region 'block'; did you mean 'blocks'"),
        ([], {"rel_l1_tresh": 0.2}, UnknownNameError, "did you mean 'rel_l1_thresh'"),
        ([], {"rel_l1_thresh": 0.2}, ConfigError, "write enable(pipeline, 'tea_cache', rel_l1_thresh=0.2)"),
        ([], {"num_inference_steps": 9}, ConfigError, "told its number of steps when it is called"),
        ([], {"steps": 14}, ConfigError, "when it is called; to compute that many of them, write computed_steps=14"),
        ([], {"steps": (0, 3)}, ConfigError, "write policy=Steps(steps=(0, 3))"),
        ([], {"policy": "spread"}, ConfigError, "write policy=omnireuse.Spread(speedup=2.0)"),
        ([], {"policy": "steps"}, ConfigError, "write policy=omnireuse.Steps(steps=(0, 2, 5))"),
        ([], {"policy": "mag_cache"}, ConfigError, "'mag_cache' is a cache backend, no policy"),
        ([], {"speedup": "2"}, WrongTypeError, "speedup='2'): speedup must be a number"),
        ([], {"speedup": "2x"}, WrongTypeError, "got the text '2x'; write speedup=2"),
        (
            [],
            {"speedup": 0.5},
            ConfigError,
            "at least 1 (all steps divided by computed steps), got 0.5",
        ),
        (
            [],
            {"computed_steps": 0},
            ConfigError,
            "enable(computed_steps=0): computed_steps must be a whole number of at least 1, got 0",
        ),
        ([], {"computed_steps": "5"}, WrongTypeError, "write computed_steps=5"),
        (
            [],
            {"quality": "40 dB"},
            WrongTypeError,
            "quality must be a PSNR in dB of at least 15 and at most 100, such as 40, got the text '40 dB'",
        ),
        ([], {"tolerance": "5%"}, WrongTypeError, "write tolerance=0.05"),
        ([], {"computed_steps": 1}, ConfigError, "computed_steps must be at least 2 without a profile"),
        ([], {"tolerance": 5}, ConfigError, "above 0 and below 1, such as 0.05 for 5 %, got 5"),
        ([], {"profile": 3}, WrongTypeError, "profile must be what omnireuse.calibrate returned, or its file"),
        ([2.0], {}, WrongTypeError, "enable(pipeline, 2.0): the second argument must be the name of a cache backend"),
        ([True], {}, WrongTypeError, "got a bool; known: cache_dit"),
        ([Path("a.json")], {}, WrongTypeError, "write profile='a.json'"),
        (["a.json"], {}, ConfigError, "write profile='a.json'"),
        ([Never()], {}, WrongTypeError, "write policy=Never()"),
        (
            [Blend()],
            {},
            WrongTypeError,
            "write forecaster=Blend(order=1, corrects=None, holds_misses=None, exponent=None)",
        ),
        ([Strategy(policy=Never())], {"region": "call"}, ConfigError, "the Strategy chooses its region itself"),
        ([Strategy(policy=Never())], {"policy": "fixed"}, ConfigError, "give either a backend or a policy"),
        ([Strategy(policy=Never())], {"speedup": 2}, ConfigError, "so a backend cannot be given with it"),
        ([], {"per_sample": False}, ConfigError, "write enable(pipeline, Strategy(policy=…, per_sample=False))"),
        (
            [],
            {"policy": "fixed", "shared_cfg_decision": True},
            ConfigError,
            "shared_cfg_decision is a field of Strategy",
        ),
        ([{"rel_l1_thresh": 0.2}], {}, WrongTypeError, "its options as keywords"),
        (["fixed"], {}, ConfigError, "'fixed' is a policy, no cache backend; write policy='fixed'"),
        ([], {"policy": "taylorseer"}, ConfigError, "write backend='taylorseer' or forecaster='taylorseer'"),
        ([], {"policy": EveryNth}, WrongTypeError, "got the class EveryNth; write policy=EveryNth()"),
        ([], {"policy": "fixed", "warmup": 2}, ConfigError, "write policy=EveryNth(warmup=2)"),
        ([], {"policy": "fixed", "speedup": 2}, ConfigError, "policy=Spread(speedup=2)"),
        ([], {"policy": "error_control", "tolerance": 0.1}, ConfigError, "policy=ErrorControl(tolerance=0.1)"),
        (
            [],
            {"policy": "fixed", "forecaster": "polynomial", "order": 2},
            ConfigError,
            "forecaster=Polynomial(order=2)",
        ),
        ([], {"warmup": 2}, ConfigError, "warmup is a field of the policy EasyCache or EveryNth or SeaCache or Spread"),
        ([], {"speedup": 2, "prediction_target": "x0"}, ConfigError, "so prediction_target cannot be given with it"),
        (["tea_cache"], {"region": "call"}, ConfigError, "the backend 'tea_cache' chooses its region itself"),
        (["tea_cache"], {"threshold": 0.2}, UnknownNameError, "did you mean 'rel_l1_thresh'"),
        (["tea_cache"], {"mag_threshold": 0.2}, UnknownNameError, "'mag_cache' has it"),
    ],
)
def test_a_mistake_names_its_remedy(
    positional: list[Any], keywords: dict[str, Any], error: type[OmniReuseError], says: str
) -> None:
    pipe = SimpleNamespace(transformer=torch.nn.Linear(2, 2))
    with pytest.raises(error) as caught:
        omnireuse.enable(pipe, *positional, **keywords)
    assert says in str(caught.value)
    assert type(pipe.transformer) is torch.nn.Linear


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
    file.write_text(GOOD + BAD)
    top = TOP
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--config-file",
        str(top / "pyproject.toml"),
    ]
    done = subprocess.run([*command, str(file)], cwd=top, capture_output=True, text=True, check=False)
    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line and file.name in line}
    first = GOOD.count("\n") + 1
    assert wrong == set(range(first, first + BAD.count("\n"))), done.stdout + done.stderr
