"""What a package index shows of the project: no address that does not exist, no link that leads nowhere there."""

from __future__ import annotations

import re
from typing import Any

import tomllib

import omnireuse
import omnireuse_engines
import omnireuse_lab

from .pages import TOP


def settings() -> dict[str, Any]:
    return tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))


def shown_by_an_index() -> str:
    """README.md as the build writes it into the metadata."""
    hook = settings()["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert hook["fragments"] == [{"path": "README.md"}]
    text = (TOP / "README.md").read_text("utf-8")
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    return text


def test_an_index_shows_absolute_links_alone() -> None:
    links = re.findall(r"\]\(([^)]+)\)", shown_by_an_index())
    assert "https://github.com/huggingface/diffusers" in links
    assert [link for link in links if not link.startswith("https://")] == []


def test_what_a_link_says_stays() -> None:
    shown = shown_by_an_index()
    assert "Tutorial · Choosing a cache" in shown
    assert "Figures has all measurements" in " ".join(shown.split())
    assert "make demo" in shown
    assert "![" not in shown


def test_one_version_everywhere() -> None:
    citation = re.search(r"^version: (\S+)$", (TOP / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    nodes = tomllib.loads((TOP / "integrations" / "comfyui" / "pyproject.toml").read_text("utf-8"))
    assert citation is not None
    assert citation[1] == nodes["project"]["version"] == omnireuse.__version__
    assert omnireuse.__version__ == omnireuse_lab.__version__ == omnireuse_engines.__version__
    for folder in (TOP / "lab", TOP / "engines"):
        project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        assert f"omnireuse=={omnireuse.__version__}" in project["dependencies"]
        assert (folder / "LICENSE").read_text("utf-8") == (TOP / "LICENSE").read_text("utf-8")
    assert f"## {omnireuse.__version__} " in (TOP / "CHANGELOG.md").read_text("utf-8")
