from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import omnireuse
from omnireuse.lab.compare.workload import Workload
from omnireuse.lab.record import Case
from omnireuse.lab.report.clips import read_frames
from reference.case import IMAGES
from reference.demo.compare import Cache, compare_caches
from reference.workload import load_quietly, reference_workload

STEPS = 8
HALF = Cache(name="half", options={"policy": omnireuse.FixedSchedule(num_computed=4), "forecaster": "hold"})
MOST = Cache(name="most", options={"policy": omnireuse.FixedSchedule(num_computed=6), "forecaster": "hold"})


@pytest.fixture(scope="module")
def workload(model: Path) -> Workload:
    return reference_workload(IMAGES, load_quietly(IMAGES, model), steps=STEPS, guidance=1.0, prompts=2, seed=0)


@pytest.fixture(scope="module")
def compared(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, Path, list[str]]:
    folder, seen = tmp_path_factory.mktemp("demo"), []
    twice = replace(HALF, name="half again")
    case, complete = compare_caches(workload, [HALF, twice, MOST], folder=folder, advance=seen.append)
    assert complete
    return case, folder, seen


def test_caches_that_compute_as_many_steps_share_a_run_of_fewer(compared: tuple[Case, Path, list[str]]) -> None:
    case, folder, _ = compared
    assert [point.title for point in case.points] == [
        "half", "fewer steps (4)", "half again", "most", "fewer steps (6)"
    ]  # fmt: skip
    half, plain, again, most, _ = case.points
    assert case.baseline_of(half) is case.baseline_of(again) is plain
    assert case.baseline_of(plain) is None
    assert plain.call == "pipeline(prompt, num_inference_steps=4)"
    assert (half.computed_steps, plain.computed_steps) == (pytest.approx(4), 4)
    assert most.psnr is not None
    assert half.psnr is not None
    assert most.psnr.mean > half.psnr.mean
    shown = {sample.image for row in (case.full.samples, *(p.samples for p in case.points)) for sample in row}
    assert {f"images/{path.name}" for path in (folder / "images").iterdir()} == shown


def test_decisions_attributes_and_pictures_are_kept(compared: tuple[Case, Path, list[str]]) -> None:
    case, folder, _ = compared
    half = case.points[0]
    sample = half.samples[1]
    assert sum(not each.reused for each in sample.decisions) == 4
    assert {each.step for each in sample.decisions} == set(range(STEPS))
    assert sample.attributes
    assert (half.kept_bytes or 0) > 0
    assert len(read_frames(folder / sample.image)) == 1
    assert half.call.startswith("omnireuse.enable(pipeline, policy=Spread(")
    assert all(not each.decisions for each in (*case.full.samples, *case.points[1].samples))
    assert {each.psnr for each in case.full.samples} == {100.0}
    assert half.speedup is not None
    assert half.speedup.low > 0
