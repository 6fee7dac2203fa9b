"""The page of figures is what the records in bench/results say."""

from __future__ import annotations

import subprocess
import sys

from .pages import TOP


def test_the_page_is_current() -> None:
    run = subprocess.run((sys.executable, "scripts/figures.py", "--check"), cwd=TOP, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
