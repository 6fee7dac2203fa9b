"""Tuning is on here, and its plans lie in a folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.tiny import Tiny
from tests.helpers.tiny import flux as tiny_flux


@pytest.fixture(autouse=True)
def cache(_untuned: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of tuned plans."""
    monkeypatch.delenv("OMNIREUSE_TUNE")
    folder = tmp_path / "cache"
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def flux() -> Tiny:
    """A pipeline with guidance, whose steps call the transformer twice."""
    return tiny_flux()
