from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from tiny import TINY, Tiny

# How long an example takes says nothing about whether it holds.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    # Tiny models are slower on several threads, and bit-equality must not depend on how a sum is split.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=sorted(TINY))
def tiny(request: pytest.FixtureRequest) -> Tiny:
    """Each of the tiny pipelines in turn."""
    return TINY[request.param]()


@pytest.fixture
def flux() -> Tiny:
    return TINY["flux"]()
