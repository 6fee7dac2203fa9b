"""What README shows is what runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
README = (TOP / "README.md").read_text(encoding="utf-8")


@pytest.mark.integration
def test_the_python_of_the_readme_runs(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    monkeypatch.setenv("OMNIREUSE_SHAPES_FLUX", str(model))
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "of 28.0 steps computed" in capsys.readouterr().out


def test_the_commands_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (TOP / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    asked = set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= asked <= targets


def test_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+?)\)", README)
    assert links
    assert not [link for link in links if not link.startswith("https://") and not (TOP / link).exists()]
