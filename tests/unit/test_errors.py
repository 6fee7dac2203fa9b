"""What every error of the library has in common."""

from __future__ import annotations

import ast
import pickle
from string import Formatter
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

import omnireuse
from omnireuse import messages
from omnireuse.diffusion.data import DiffusionCacheConfig
from omnireuse.errors import OmniReuseError, UnknownNameError
from tests import TOP

NAMES = ["latents", "num_inference_steps", "true_cfg_scale"]
SCHEDULER = FlowMatchEulerDiscreteScheduler()
MODEL = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(1, 1)), torch.nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("given", "meant"), [("steps", "num_inference_steps"), ("true_cfg_scal", "true_cfg_scale"), ("latent", "latents")]
)
def test_a_name_that_is_meant_is_suggested(given: str, meant: str) -> None:
    assert f"did you mean {meant!r}?" in str(UnknownNameError("argument", given, NAMES))


@pytest.mark.parametrize("given", [SCHEDULER, MODEL], ids=["scheduler", "model"])
@pytest.mark.parametrize(
    "mistake",
    [
        lambda given: omnireuse.TeaCache(rel_l1_thresh=given, coefficients=None),
        lambda given: omnireuse.ErrorControl(tolerance=given),
        lambda given: DiffusionCacheConfig(warmup_steps=given, rel_l1_thresh=given),
        lambda given: omnireuse.calibrate(MODEL, ["a", "b"], steps=given),
        lambda given: omnireuse.calibrate(MODEL, given),
    ],
)
def test_an_error_names_what_was_given_and_prints_no_pages_of_it(mistake: Any, given: Any) -> None:
    with pytest.raises((OmniReuseError, TypeError)) as caught:
        mistake(given)
    said = str(caught.value)
    assert "\n" not in said
    assert "_class_name" not in said
    assert len(said) < 200
    assert str(pickle.loads(pickle.dumps(caught.value))) == said


def test_text_around_it_stays() -> None:
    assert str(OmniReuseError(f"first {SCHEDULER!r} middle {MODEL!r} last")) == (
        "first FlowMatchEulerDiscreteScheduler(…) middle Sequential(…) last"
    )
    assert "got FlowMatch" not in str(UnknownNameError("policy", "a\nb", ["never"]))


def test_each_message_is_raised_with_its_placeholders() -> None:
    texts = {name: text for name, text in vars(messages).items() if name.isupper()}
    needs = {
        (name, each.partition(".")[0]) for name in texts for _, each, _, _ in Formatter().parse(texts[name]) if each
    }
    taken, given = set(), set()
    for path in (TOP / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            first = ast.walk(node.args[0]) if isinstance(node, ast.Call) and node.args else ()
            names = {
                each.attr for each in first if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "messages"
            }
            taken |= names
            given |= {(name, keyword.arg) for name in names for keyword in node.keywords}
    assert taken == texts.keys()
    assert given == needs


def test_a_message_takes_what_was_given_as_it_is() -> None:
    error = OmniReuseError(messages.FILE_AS_BACKEND, file="{a}.json")
    assert "names a cache backend; write profile='{a}.json'" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
