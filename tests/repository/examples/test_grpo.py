"""The example's proof holds, and would not if the cache served what it should have forgotten."""

import runpy

import pytest

from omnireuse.fingerprints.survey import Survey
from tests import TOP

pytest.importorskip("skimage", reason="needs omnireuse-lab")

EXAMPLE = str(TOP / "examples" / "grpo.py")


def test_rollouts_encode_each_prompt_once_an_update(capsys):
    counts = runpy.run_path(EXAMPLE)["main"](rounds=2, prompts=2, seeds=2, steps=2)
    # A round: two prompts and the negative one; two encode_prompt calls an image; two denoiser calls a step.
    assert counts == {"hits": 2 * (8 - 3), "encodes": 2 * 3, "checked": 32}
    assert "32 denoiser calls checked" in capsys.readouterr().out


def test_the_proof_can_fail(monkeypatch):
    monkeypatch.setattr(Survey, "holds", lambda self: True)
    with pytest.raises(RuntimeError, match="older weights"):
        runpy.run_path(EXAMPLE)["main"](rounds=2, prompts=1, seeds=2, steps=1)
