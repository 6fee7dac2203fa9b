from __future__ import annotations

import pytest

from tests.helpers.tiny import TINY, Tiny


@pytest.fixture(params=sorted(TINY))
def tiny(request: pytest.FixtureRequest) -> Tiny:
    """Each of the tiny pipelines in turn."""
    return TINY[request.param]()


@pytest.fixture
def flux() -> Tiny:
    return TINY["flux"]()
