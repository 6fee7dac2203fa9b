from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.tests.comparisons import changed, peers
from omnireuse.errors import ConfigError
from omnireuse_lab.record import read_comparison, write_comparison
from omnireuse_lab.report.page import write_page


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_comparison(peers(), tmp_path / "compare.json")
    return tmp_path / "compare.json"


def page_of(file: Path) -> None:
    write_page(read_comparison(file), file.with_suffix(".html"))


def leaves(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a JSON document are, of a list only the first and the last."""
    if isinstance(document, dict):
        return [found for key, value in document.items() for found in leaves(value, (*at, key))]
    if isinstance(document, list) and document:
        ends = {0, len(document) - 1}
        return [found for index in sorted(ends) for found in leaves(document[index], (*at, index))]
    return [at]


@pytest.mark.parametrize("value", [None, 0, -1, "nan", 1e300])
def test_a_damaged_value_is_refused_or_shown_but_never_a_surprise(value: Any, file: Path) -> None:
    case = peers().cases[0]
    write_comparison(changed(peers(), points=case.points[-1:]), file)
    whole = json.loads(file.read_text("utf-8"))
    refused = 0
    for *path, last in leaves(whole):
        document = json.loads(json.dumps(whole))
        owner = document
        for key in path:
            owner = owner[key]
        owner[last] = value
        file.write_text(json.dumps(document), "utf-8")
        try:
            page_of(file)
        except ConfigError:
            refused += 1
    assert refused
