"""The site: pages from outside of docs/, links between them, and what the page of versions claims."""

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace
from typing import Any

import pytest

from .pages import TOP


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, TOP / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site() -> Any:
    pytest.importorskip("mkdocs", reason="the site's tools are not installed: make docs")
    return load("site_pages")


@pytest.mark.parametrize(
    ("page", "written", "led"),
    [
        ("index.md", "[a](figures.md#x)", "[a](figures.md#x)"),
        ("changes.md", "[a](docs/figures.md#x)", "[a](figures.md#x)"),
        ("how-to/own-loop.md", "[a](../../examples/own_loop.py)", "[a](../repository/examples/own_loop.py.md)"),
        ("figures.md", "[a](../models/shapes-wan/README.md)", "[a](repository/models/shapes-wan/README.md)"),
        ("figures.md", "[a](https://example.org/a.md) [b](#c)", "[a](https://example.org/a.md) [b](#c)"),
    ],
)
def test_links_lead_to_the_page_of_the_same_file(site: Any, page: str, written: str, led: str) -> None:
    shown = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert site.on_page_markdown(written, shown, None, None) == led


def test_the_page_of_versions_names_those_that_are_pinned() -> None:
    compatibility = load("compatibility")
    rows = compatibility.rows()
    assert set(compatibility.ROWS.values()) <= set(rows)
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (TOP / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    suite = [cell.strip() for cell in rows[compatibility.ROWS["suite"]].split("|")]
    assert suite[3:6] == [pins["torch"], pins["diffusers"], pins["transformers"]]
