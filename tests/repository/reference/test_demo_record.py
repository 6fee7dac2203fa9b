from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from lab.tests.comparisons import gallery
from reference.demo.record import read_demo, write_demo


def test_round_trip_keeps_pictures_and_decisions_in_strict_json(tmp_path: Path) -> None:
    write_demo(gallery(), tmp_path / "r.json")
    assert read_demo(tmp_path / "r.json") == gallery()

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads((tmp_path / "r.json").read_text("utf-8"), parse_constant=refuse)


def test_the_baseline_of_a_cache_costs_as_much_and_the_gain_is_above_it() -> None:
    demo = gallery()
    assert [demo.baseline_of(place) for place in range(4)] == [3, 2, None, None]
    assert demo.gains == {0: pytest.approx(44.0 - 34.0), 1: pytest.approx(36.0 - 37.4)}
    case = replace(demo.case, points=demo.case.points[:2])
    plain = replace(demo, comparison=replace(demo.comparison, cases=(case,)), samples=demo.samples[:2])
    assert plain.gains == {}
