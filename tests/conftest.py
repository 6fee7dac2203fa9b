"""How the suite is dealt out to parallel workers: a file stays whole, and so does a folder with costly fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = {"demo", "compare", "sources", "docs"}
"""Folders whose files share a fixture that takes longer than their tests."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    tests = Path(__file__).parent
    for item in items:
        file = item.path.relative_to(tests)
        group = file.parts[0] if file.parts[0] in SHARED else file.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
