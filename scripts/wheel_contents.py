"""Check what a wheel holds: its package, typed, and nothing else.

python scripts/wheel_contents.py dist/omnireuse-0.3.0-py3-none-any.whl
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

LARGEST = 1_000_000
"""Bytes of a wheel without weights."""


def check(wheel: Path) -> list[str]:
    """What is wrong with a wheel, empty if nothing is."""
    names, package = zipfile.ZipFile(wheel).namelist(), wheel.name.partition("-")[0]
    strangers = [name for name in names if not name.startswith((f"{package}/", f"{package}-"))]
    wrong = [f"{name} does not belong into the wheel" for name in strangers]
    wrong += [f"{name} is missing" for name in (f"{package}/__init__.py", f"{package}/py.typed") if name not in names]
    if not any(name.endswith("licenses/LICENSE") for name in names):
        wrong.append("the licence is missing")
    if wheel.stat().st_size > LARGEST:
        wrong.append(f"{wheel.stat().st_size} bytes, {LARGEST} at most")
    return wrong


if __name__ == "__main__":
    found = check(Path(sys.argv[1]))
    print("\n".join(found) or f"{sys.argv[1]}: as it should be")
    sys.exit(bool(found))
