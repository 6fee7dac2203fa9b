"""The example's proof holds, and would not if the cache served what it should have forgotten."""

import runpy
from pathlib import Path

import pytest

from omnireuse.diffusion.prompts.watch import EncoderWatch

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "grpo.py")


def test_rollouts_encode_each_prompt_once_an_update(capsys):
    counts = runpy.run_path(EXAMPLE)["main"](rounds=3, prompts=2, seeds=4)
    assert counts == {"hits": 18, "encodes": 6, "checked": 24}
    assert "24 embeddings used" in capsys.readouterr().out


def test_the_proof_can_fail(monkeypatch):
    monkeypatch.setattr(EncoderWatch, "current", lambda self, pipeline: (0, (), (), None))
    with pytest.raises(RuntimeError, match="older weights"):
        runpy.run_path(EXAMPLE)["main"](rounds=2, prompts=1, seeds=2)
