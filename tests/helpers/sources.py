"""Fixtures of tests on pipelines that do not come from a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnireuse.cli import main
from reference.load import load_image_pipeline

HERE = Path(__file__).parent
PROMPTS = ["a circle", "a square", "a cross", "a ring"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on four prompts beside the module of custom pipelines; its status and what it printed."""
    monkeypatch.chdir(HERE)
    monkeypatch.setattr("sys.path", [each for each in __import__("sys").path if each not in ("", str(HERE))])
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS), "utf-8")

    def command(name: str, *given: str) -> tuple[int, str, str]:
        prompts = ("--prompts", str(tmp_path / "prompts.txt"))
        status = main([name, *given, *prompts, "--out", str(tmp_path / "out.json")])
        said = capsys.readouterr()
        return status, said.out, " ".join(said.err.split())

    return command


@pytest.fixture(scope="session")
def modular() -> Any:
    """The reference image pipeline, run by the modular blocks of diffusers."""
    diffusers = pytest.importorskip("diffusers", minversion="0.36", reason="modular pipelines came with 0.36")
    parts = load_image_pipeline().components
    pipeline = diffusers.FluxModularPipeline(diffusers.FluxAutoBlocks())
    pipeline.update_components(**{name: parts[name] for name in pipeline.component_names if name in parts})
    return pipeline
