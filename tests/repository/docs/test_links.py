"""Links of the documentation lead somewhere: to a file of the repository, to a heading, or outside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .pages import NAMES, TOP


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and PyPI make them."""
    found = set()
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower().strip())
        found.add(words.replace(" ", "-"))
    return found


def dead_links(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    assert dead_links(TOP / name) == []
