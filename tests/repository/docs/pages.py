"""The pages of the documentation and the code blocks in them, read with sybil."""

from __future__ import annotations

import re
from pathlib import Path

from sybil import Document, Example
from sybil.parsers.markdown import CodeBlockParser

from tests import TOP

PAGES = [
    TOP / "README.md",
    TOP / "CONTRIBUTING.md",
    *sorted(p for f in ("docs", "models") for p in (TOP / f).rglob("*.md")),
]
NAMES = [page.relative_to(TOP).as_posix() for page in PAGES]

#: A comment right before a Python block that says why the block is compiled and not run.
MARK = re.compile(r"<!-- compiled only: (?P<reason>[^\n]+?) -->\n\Z")
REASONS = {"needs a GPU", "needs a hub", "needs a server", "needs vLLM"}


class PythonBlocks(CodeBlockParser):
    """Runs each Python block in the namespace of its page; compiles those with a `MARK`."""

    language = "python"

    def evaluate(self, example: Example) -> None:
        before = example.document.text[: example.region.start]
        # As many empty lines as stand before the block, so that a traceback names the line of the page.
        source = "\n" * example.line + str(example.parsed)
        code = compile(source, example.document.path, "exec", dont_inherit=True)
        if (mark := MARK.search(before)) is None:
            exec(code, example.namespace)
        elif mark["reason"] not in REASONS:
            raise AssertionError(f"{example.document.path}:{example.line}: a reason must be one of {sorted(REASONS)}")


def run(page: Path) -> int:
    """Run the Python blocks of a page in order; how many there are."""
    document = Document.parse(str(page), PythonBlocks())
    document.namespace["__name__"] = "__main__"
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    return len(examples)


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """Line, language and text of every fenced block of a page."""
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(match.string.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in found]
