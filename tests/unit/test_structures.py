from __future__ import annotations

import re

from tests import TOP


def test_every_module_has_its_line() -> None:
    listed: set[str] = set()
    folder = ""
    for line in (TOP / "docs" / "structures.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            folder = line.removeprefix("## ")
        elif found := re.match(r"- `(.+\.py)`: \S", line):
            listed.add(f"{folder}/{found[1]}")
    modules = {
        path.relative_to(top).as_posix()
        for top, room in ((TOP / "src", "omnireuse"), (TOP, "reference"))
        for path in (top / room).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert listed == modules, "run: python scripts/structures.py"
