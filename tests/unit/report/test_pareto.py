from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from omnireuse.errors import ConfigError
from omnireuse.evaluation.report.pareto import Case, Full, Mean, Pareto, Point, Spread, read_pareto, write_pareto


def made() -> Pareto:
    point = Point(
        method="default",
        family="ours",
        settings={"speedup": 2.0, "note": None},
        computed_steps=14.0,
        psnr=Mean(mean=45.0, low=40.0, high=50.0),
        each=(40.0, 50.0),
        ssim=Mean(mean=0.9, low=0.8, high=1.0),
        speedup=Spread(median=1.9, low=1.8, high=2.0),
        call="omnireuse.enable(pipe)",
    )
    failed = Point(method="other", family="peer", settings={}, call="other(pipe)", error="does not serve it")
    full = Full(seconds=Spread(median=1.0, low=0.9, high=1.1), attributes=0.99)
    case = Case(
        pipeline="shapes",
        steps=28,
        guidance=6.0,
        prompts=("a", "b"),
        full=full,
        points=(point, failed),
        targets={"worst": 0.5, "none": None},
    )
    return Pareto(command="c", created="now", environment={"torch": "2"}, complete=True, cases=(case,))


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    write_pareto(made(), tmp_path / "p.json")
    assert read_pareto(tmp_path / "p.json") == made()
    document = json.loads((tmp_path / "p.json").read_text())
    assert (document["format"], document["kind"]) == (1, "pareto")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    write_pareto(made(), tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    (tmp_path / "q.json").write_text(json.dumps({**document, "kind": "other"}))
    with pytest.raises(ConfigError, match=r"kind must be 'pareto', got 'other'; `omnireuse compare` writes"):
        read_pareto(tmp_path / "q.json")


def test_a_wrong_field_is_named_by_its_place(tmp_path: Path) -> None:
    write_pareto(made(), tmp_path / "p.json")
    document = json.loads((tmp_path / "p.json").read_text())
    document["cases"][0]["points"][0]["psnr"]["low"] = "far"
    (tmp_path / "p.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"cases\[0\]\.points\[0\]\.psnr\.low must be a float, got 'far'"):
        read_pareto(tmp_path / "p.json")


def test_a_point_holds_either_an_error_or_figures() -> None:
    point = made().cases[0].points[0]
    with pytest.raises(ConfigError, match="either an error or its figures"):
        replace(point, error="failed")
    with pytest.raises(ConfigError, match="either an error or its figures"):
        replace(point, psnr=None)


def test_a_point_has_one_psnr_for_each_prompt() -> None:
    case = made().cases[0]
    with pytest.raises(ConfigError, match="one PSNR for each of 2 prompts, got 1"):
        replace(case, points=(replace(case.points[0], each=(40.0,)),))


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ConfigError, match="'ours', 'peer', 'floor'"):
        replace(made().cases[0].points[0], family="friend")


def test_the_name_says_whether_there_is_guidance() -> None:
    case = made().cases[0]
    assert case.name == "shapes, 28 steps, guidance 6"
    assert replace(case, guidance=1.0).name == "shapes, 28 steps, no guidance"
