"""Tuning is on here, and its plans lie in a folder of the test."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.helpers.tiny import Tiny
from tests.helpers.tiny import small_flux as tiny_flux


@pytest.fixture(autouse=True)
def cache(_untuned: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of tuned plans. Trial runs take as long as they take, so that no test depends on the clock."""
    monkeypatch.delenv("OMNIREUSE_TUNE")
    monkeypatch.setattr("omnireuse.tuning.entry.PATIENCE", math.inf)
    folder = tmp_path / "cache"
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def flux() -> Tiny:
    """A pipeline with guidance, whose steps call the transformer twice."""
    return tiny_flux()
