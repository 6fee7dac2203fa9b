"""Every Python block of the documentation runs as written, page by page and in order."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import pytest

from omnireuse.base.registry import Registry

from .pages import NAMES, TOP, blocks, run

LONG = {"docs/calibration.md", "docs/reference.md", "docs/step-reuse-options.md", "docs/tuning.md", "docs/tutorial.md"}
"""Pages whose blocks take as long as all others together."""
WITH_PYTHON = [
    pytest.param(name, marks=pytest.mark.slow) if name in LONG else name
    for name in NAMES
    if any(language == "python" for _, language, _ in blocks(TOP / name))
]


@pytest.mark.integration
@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_blocks_of_a_page_run(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    # As at the top of a clone, but what a block writes is written elsewhere.
    for folder in ("models", "bench", "examples"):
        (tmp_path / folder).symlink_to(TOP / folder)
    monkeypatch.chdir(tmp_path)
    # What a page adds to a registry is gone with the test.
    add = Registry.__setitem__

    def added(registry: Registry[Any], name: str, value: Any) -> None:
        add(registry, name, value)
        request.addfinalizer(lambda: registry.builtin.pop(name))

    monkeypatch.setattr(Registry, "__setitem__", added)
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)  # no test depends on the clock
    # As a reader has it: tuning is on, and its plans lie in the folder of this test (conftest.py).
    for variable in ("OMNIREUSE_TUNE", "OMNIREUSE_SHAPES_FLUX", "OMNIREUSE_SHAPES_WAN"):
        monkeypatch.delenv(variable, raising=False)
    assert run(TOP / name) == sum(language == "python" for _, language, _ in blocks(TOP / name))
    assert "(none reused)" not in capsys.readouterr().out, f"{name} shows a reader a summary of nothing"
    gc.collect()


def test_an_engine_is_written_with_the_product_alone() -> None:
    text = (TOP / "docs" / "extending.md").read_text("utf-8")
    section = text.partition("\n## An engine\n")[2].partition("\n## ")[0]
    assert "class SketchEngine" in section
    assert "import omnireuse_" not in section
    assert "from omnireuse_" not in section


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path
