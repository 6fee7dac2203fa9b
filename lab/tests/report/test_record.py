from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from lab.tests.comparisons import changed
from omnireuse.errors import ConfigError
from omnireuse_lab.closeness import Mean, MedianRange
from omnireuse_lab.record import Case, Comparison, Point, Reference, read_comparison, write_comparison


def made() -> Comparison:
    point = Point(
        method="default",
        family="ours",
        settings={"speedup": 2.0, "note": None},
        computed_steps=14.0,
        psnr=Mean(mean=45.0, low=40.0, high=50.0),
        each=(40.0, 50.0),
        ssim=Mean(mean=0.9, low=0.8, high=1.0),
        speedup=MedianRange(median=1.9, low=1.8, high=2.0),
        call="omnireuse.enable(pipe)",
    )
    failed = Point(method="other", family="peer", settings={}, call="other(pipe)", error="does not serve it")
    full = Reference(seconds=MedianRange(median=1.0, low=0.9, high=1.1), scores={"own": 0.99})
    case = Case(
        pipeline="shapes",
        steps=28,
        guidance=6.0,
        prompts=("a", "b"),
        full=full,
        points=(point, failed),
    )
    return Comparison(command="c", created="now", environment={"torch": "2"}, complete=True, cases=(case,))


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    write_comparison(made(), tmp_path / "p.json")
    assert read_comparison(tmp_path / "p.json") == made()
    document = json.loads((tmp_path / "p.json").read_text("utf-8"))
    assert (document["format"], document["kind"]) == (3, "comparison")


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


def test_a_figure_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="float"):
        write_comparison(changed(made(), guidance=math.nan), tmp_path / "r.json")
    assert not (tmp_path / "r.json").exists()
