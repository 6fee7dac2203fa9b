"""The committed pages: small, whole, and all of them listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
PAGES = sorted(path for path in GALLERY.glob("*.html") if path.name != "index.html")


def test_the_index_lists_every_page_and_nothing_else() -> None:
    links = re.findall(r'href="([^"]+)"', (GALLERY / "index.html").read_text(encoding="utf-8"))
    assert sorted(links) == [path.name for path in PAGES]
    written = re.findall(r"\]\(([^)]+)\)", (GALLERY / "README.md").read_text(encoding="utf-8"))
    assert written == ["index.html"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_small_and_needs_nothing_beside_itself(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text) <= 600_000
    assert "default-src 'none'" in text
    assert all(source.startswith("data:image/") for source in re.findall(r'(?:src|href)="([^"]+)"', text))
    assert not re.search(r"/(?:tmp|home|root|work)/", text), "no place of the machine that made it"
