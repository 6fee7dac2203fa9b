"""The committed pages: small, whole, and all of them listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import TOP
from tests.helpers.sweep import sweep

from .window import Window

GALLERY = TOP / "docs" / "gallery"
PAGES = sorted(path for path in GALLERY.glob("*.html") if path.name != "index.html")


def test_the_index_lists_every_page_and_nothing_else() -> None:
    links = re.findall(r'href="([^"]+)"', (GALLERY / "index.html").read_text(encoding="utf-8"))
    assert sorted(links) == [path.name for path in PAGES]
    written = re.findall(r"gallery/(\w+)\.html", (GALLERY.parent / "gallery.md").read_text(encoding="utf-8"))
    assert set(written) == {path.stem for path in PAGES}


@pytest.mark.browser
@pytest.mark.parametrize("width", sweep([420, 1400], quick=[420]))
@pytest.mark.parametrize("file", PAGES, ids=lambda page: page.stem)
def test_a_committed_page_is_as_it_is_made_now(window: Window, file: Path, width: int) -> None:
    page = window.open(file, width=width, still=True)
    assert window.errors == []
    page.evaluate("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(e => e.scrollWidth <= e.clientWidth)")
    assert page.evaluate("document.querySelectorAll('.explained .plot .read').length") >= 1
    if file.stem != "peers":
        assert page.evaluate("document.querySelectorAll('figure .diff[role=img] img').length") > 10
        assert page.evaluate("document.querySelector('.front .stage').getBoundingClientRect().bottom") <= 900


@pytest.mark.parametrize("file", PAGES, ids=lambda page: page.stem)
def test_a_page_is_small_and_needs_nothing_beside_itself(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text) <= 700_000
    assert "default-src 'none'" in text
    assert all(source.startswith("data:image/") for source in re.findall(r'(?:src|href)="([^"]+)"', text))
    assert not re.search(r"/(?:tmp|home|root|work)/", text), "no place of the machine that made it"
