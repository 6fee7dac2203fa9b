from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.tiny import TINY, Tiny


@pytest.fixture(params=sorted(TINY))
def tiny(request: pytest.FixtureRequest) -> Tiny:
    """Each of the tiny pipelines in turn."""
    return TINY[request.param]()


@pytest.fixture
def flux() -> Tiny:
    return TINY["flux"]()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tuning is on, and keeps its plans in a folder of the test."""
    monkeypatch.delenv("OMNIREUSE_TUNE", raising=False)
    monkeypatch.setenv("OMNIREUSE_CACHE_DIR", str(tmp_path))
