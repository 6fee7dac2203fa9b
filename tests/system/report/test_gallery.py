"""The committed pages: small, whole, and all of them listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from tests import TOP

from .window import Window

GALLERY = TOP / "docs" / "gallery"
PAGES = sorted(path for path in GALLERY.glob("*.html") if path.name != "index.html")


def test_the_index_lists_every_page_and_nothing_else() -> None:
    links = re.findall(r'href="([^"]+)"', (GALLERY / "index.html").read_text(encoding="utf-8"))
    assert sorted(links) == [path.name for path in PAGES]
    written = re.findall(r"gallery/(\w+)\.html", (GALLERY.parent / "gallery.md").read_text(encoding="utf-8"))
    assert set(written) == {path.stem for path in PAGES}


def test_the_index_shows_a_small_picture_of_every_page() -> None:
    text = (GALLERY / "index.html").read_text(encoding="utf-8")
    shown = re.findall(r'<a href="(\w+)\.html"><img src="(\w+)\.webp" alt="([^"]+)">', text)
    assert sorted(page for page, _, _ in shown) == [path.stem for path in PAGES]
    for page, picture, words in shown:
        assert page == picture
        assert len(words) > 20
        path = GALLERY / f"{picture}.webp"
        assert path.stat().st_size < 60_000
        with Image.open(path) as image:
            assert image.width >= 400
            assert 1.3 <= image.width / image.height <= 1.7, "cut to 3 : 2, little of it is lost"


@pytest.mark.browser
@pytest.mark.parametrize(("width", "columns"), [(420, 1), (1400, 3)])
def test_the_index_lies_well_in_a_window(window: Window, width: int, columns: int) -> None:
    page = window.open(GALLERY / "index.html", width=width)
    assert window.errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(e => e.complete && e.naturalWidth > 0)")
    tops = page.evaluate("[...document.querySelectorAll('li')].map(e => e.offsetTop)")
    assert len(tops) == len(PAGES)
    assert tops.count(tops[0]) == columns
    assert page.evaluate("document.querySelector('img').getBoundingClientRect().bottom") <= 900


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1400])
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


@pytest.mark.parametrize("name", ["compare", "strategies-28", "strategies-50"])
def test_the_pictures_of_the_docs_stay_small(name: str) -> None:
    assert (GALLERY.parent / "images" / f"{name}.png").stat().st_size < 600_000


@pytest.mark.parametrize("file", PAGES, ids=lambda page: page.stem)
def test_a_page_is_small_and_needs_nothing_beside_itself(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text) <= 700_000
    assert "default-src 'none'" in text
    assert all(source.startswith("data:image/") for source in re.findall(r'(?:src|href)="([^"]+)"', text))
    assert not re.search(r"/(?:tmp|home|root|work)/", text), "no place of the machine that made it"
