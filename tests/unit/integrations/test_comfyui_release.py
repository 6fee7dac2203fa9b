"""Which releases of ComfyUI the nodes load in."""

from __future__ import annotations

import logging

import pytest

from omnireuse.engines.comfyui import check_comfyui
from omnireuse.errors import ConfigError

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
