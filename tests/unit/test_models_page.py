from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests import TOP


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(TOP / "scripts" / "models.py"))


def test_the_page_says_what_is_declared(script: dict[str, Any]) -> None:
    assert (TOP / "docs" / "models.md").read_text(encoding="utf-8") == script["page"](), "run: python scripts/models.py"
    assert len(script["pipelines"](script["TRIED"])) > 30
