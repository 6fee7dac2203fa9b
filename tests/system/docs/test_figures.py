"""The page of figures is what the records in bench/results say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .pages import TOP
from .test_site import load


def test_the_page_is_current() -> None:
    run = subprocess.run((sys.executable, "scripts/figures.py", "--check"), cwd=TOP, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_another_record_makes_another_page(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = load("figures")
    before, read = figures.page(), figures.read
    assert before == figures.PAGE.read_text("utf-8")
    monkeypatch.setattr(figures, "read", lambda name: {**read(name), "run": {"day": "2026-12-24", "revision": "abc"}})
    assert "24 December 2026, revision abc" in figures.page()
