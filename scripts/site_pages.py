"""A hook of mkdocs: README, CHANGELOG and other files outside of docs/ that pages link to are pages of the site.

A link in a page leads to a file of the repository, so that it works there, too. The site has the same files at
addresses of its own, and this hook turns each link into one of those.
"""

from __future__ import annotations

import html as markup
import itertools
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

TOP = Path(__file__).resolve().parents[1]
DOCS = TOP / "docs"
ADDRESSES = {"CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
"""File of the repository -> page of the site; others lie in `repository/`."""
CODE = {"": "text", ".py": "python", ".sh": "bash", ".json": "json"}
"""Ending of a file that is shown as code -> its language."""
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CELL = re.compile(r"<(t[hd])([^>]*)>(.*?)</\1>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
WORDS = 34
"""Characters of a cell from which a table is one of words."""
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def address(file: Path) -> str:
    """The page or picture of the site that a file of the repository becomes."""
    if file.is_relative_to(DOCS):
        return file.relative_to(DOCS).as_posix()
    name = file.relative_to(TOP).as_posix()
    return ADDRESSES.get(name, f"repository/{name}{'.md' if file.suffix in CODE else ''}")


def source(page: str) -> Path:
    """The file of the repository that a page of the site shows."""
    named = {each: name for name, each in ADDRESSES.items()}.get(page)
    inside = DOCS / page
    return TOP / (named or page.removeprefix("repository/")) if named or not inside.exists() else inside


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside of docs/ that README and the pages link to, and those that these link to."""
    seen: set[Path] = set()
    waiting = [TOP / name for name in ADDRESSES] + [DOCS / file.src_uri for file in files.documentation_pages()]
    while waiting:
        file = waiting.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        if not file.is_relative_to(DOCS):
            shown = (
                {"content": f"# {file.name}\n\n```{CODE[file.suffix]}\n{file.read_text('utf-8')}```\n"}
                if file.suffix in CODE
                else {"abs_src_path": str(file)}
            )
            files.append(File.generated(config, address(file), **shown))
        if file.suffix == ".md":
            text = BLOCK.sub("", file.read_text("utf-8"))
            waiting += [(file.parent / link).resolve() for link in LINK.findall(text)]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page to the pages of the site."""
    here, folder = page.file.src_uri, source(page.file.src_uri).parent

    def lead(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        return os.path.relpath(address(target), Path(here).parent) if target.is_file() else link[1]

    return LINK.sub(lead, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Name the column in each cell of a table of words, which a phone shows as a list of cards."""
    return TABLE.sub(_cards, html)


def _cards(table: re.Match[str]) -> str:
    cells = [(kind, TAG.sub("", text).strip()) for kind, _, text in CELL.findall(table[0])]
    if max(len(text) for _, text in cells) < WORDS:
        return table[0]
    names = itertools.cycle([markup.unescape(text) for kind, text in cells if kind == "th"])

    def named(cell: re.Match[str]) -> str:
        if cell[1] == "th":
            return cell[0]
        return f'<td data-column="{markup.escape(next(names))}"{cell[2]}>{cell[3]}</td>'

    return CELL.sub(named, table[0]).replace("<table>", "<table data-cards>", 1)
