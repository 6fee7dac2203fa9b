from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from omnireuse.errors import ConfigError
from reference.demo.record import read_demo, write_demo
from tests.helpers.comparisons import gallery


def test_round_trip_keeps_pictures_and_decisions_in_strict_json(tmp_path: Path) -> None:
    write_demo(gallery(), tmp_path / "r.json")
    assert read_demo(tmp_path / "r.json") == gallery()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)


def test_the_baseline_of_a_cache_costs_as_much_and_the_gain_is_above_it() -> None:
    demo = gallery()
    assert [demo.baseline_of(place) for place in range(4)] == [3, 2, None, None]
    assert demo.gains == {0: pytest.approx(44.0 - 34.0), 1: pytest.approx(36.0 - 37.4)}
    case = replace(demo.case, points=demo.case.points[:2])
    plain = replace(demo, comparison=replace(demo.comparison, cases=(case,)), samples=demo.samples[:2])
    assert plain.gains == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: made.update(kind="comparison"), "kind of a demo must be 'demo', got 'comparison'"),
        (lambda made: made["samples"][1][0].update(psnr="good"), r"samples\[\.\.\.\]|samples\[1\]\[0\]\.psnr"),
        (lambda made: made["samples"].pop(), "a row for each point"),
        (lambda made: made["full"].pop(), "every row must hold 3 samples"),
        (lambda made: made["full"][0].update(image="../a.png"), "image must lie in the folder"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "r.json"
    write_demo(gallery(), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=message):
        read_demo(path)
