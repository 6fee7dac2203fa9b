"""Which releases of ComfyUI the nodes load in."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from omnireuse.errors import ConfigError, StateError, WrongTypeError
from omnireuse_engines.comfyui import Span, attach, check_comfyui, plan_for, plan_of_profile, reuse_of

KINDS = ("outer_sample", "predict_noise", "calc_cond_batch", "sampler_sample", "another")


@pytest.mark.parametrize(("version", "is_named"), [("0.30", False), ("0.30.2", False), ("0.3.0", True), ("0.31", True)])
def test_another_release_with_every_hook_is_named_in_the_log(
    version: str, is_named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "omnireuse"):
        check_comfyui(version, KINDS)
    assert (f"tested with ComfyUI 0.30, this is {version}" in caplog.text) == is_named


@pytest.mark.parametrize("version", ["0.30", "0.2"])
def test_a_release_without_a_hook_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=rf"ComfyUI {version} is not supported.*not hooked: calc_cond_batch; install"):
        check_comfyui(version, [kind for kind in KINDS if kind != "calc_cond_batch"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"speedup": 0.5}, r"Omnireuse\(speedup=0.5\): speedup must be a number from 1 to 20"),
        ({"tolerance": 1.5}, r"Omnireuse\(tolerance=1.5\): tolerance must be a number above 0 and below 1"),
        ({"speedup": 2.0, "tolerance": 0.1}, "set one of them to 0"),
    ],
)
def test_bad_inputs_of_a_node_are_refused(inputs: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_for(**inputs)


@pytest.mark.parametrize("share", [{"start": 0.9, "end": 0.2}, {"start": -0.1}, {"end": 1.5}])
def test_a_share_that_is_none_is_refused(share: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="start_percent must be at least 0 and below end_percent"):
        Span(**share)


def test_what_is_no_model_with_reuse_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongTypeError, match="model must have ComfyUI's wrappers"):
        attach(object(), plan_for(speedup=2.0))
    with pytest.raises(StateError, match="this model has no reuse"):
        reuse_of(object())
    with pytest.raises(ConfigError, match=r"missing\.json: cannot be read"):
        plan_of_profile(tmp_path / "missing.json")
