from __future__ import annotations

import runpy
from pathlib import Path

TOP = Path(__file__).parents[1]


def test_the_page_says_what_is_declared() -> None:
    script = runpy.run_path(str(TOP / "scripts" / "models.py"))
    assert (TOP / "docs" / "models.md").read_text(encoding="utf-8") == script["page"](), "run: python scripts/models.py"
    assert len(script["pipelines"](script["TRIED"])) > 30
