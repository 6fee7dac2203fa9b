"""Write docs/structures.md: one line a module, the first sentence of its docstring.

Usage: python scripts/structures.py [--check]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
PAGE = TOP / "docs" / "structures.md"
ROOMS = (TOP / "src" / "omnireuse", TOP / "reference")

HEAD = """\
# Structure

This page has one line for each module, from its docstring. `python scripts/structures.py` writes it, and a test checks
that it is complete. Imports point in one direction: errors, policies, forecasters, runtime, adapters, profiles, cache
and `enable`, calibration, evaluation, command line. `core` does not depend on denoising, and the package does not
depend on `reference`. `tests/unit/test_imports.py` checks this.
"""


def summary(path: Path) -> str:
    """The first paragraph of a module's docstring, as one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def page() -> str:
    """The page as it should be."""
    lines = [HEAD]
    folders = [folder for room in ROOMS for folder in sorted({path.parent for path in room.rglob("*.py")})]
    for folder in folders:
        init = folder / "__init__.py"
        top = TOP / "src" if folder.is_relative_to(TOP / "src") else TOP
        lines.append(f"## {folder.relative_to(top).as_posix()}\n")
        if init.is_file():
            lines.append(f"{summary(init)}\n")
        modules = [path for path in sorted(folder.glob("*.py")) if path != init]
        lines += [f"- `{path.name}`: {summary(path)}" for path in modules]
        lines += [""] if modules else []
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write the page, or with ``--check`` only say whether it is current."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted
        print(
            "docs/structures.md is current"
            if current
            else "docs/structures.md is not current: run scripts/structures.py"
        )
        return 0 if current else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
