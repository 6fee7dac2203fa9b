"""A page read as a browser would read it, without a browser."""

from __future__ import annotations

import html.parser


class Page(html.parser.HTMLParser):
    """The start tags of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        """The text in one line."""
        return " ".join(" ".join(self.text).split())
