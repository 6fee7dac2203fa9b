from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import omnireuse
from omnireuse_lab.compare.workload import Workload
from omnireuse_lab.record import Comparison
from reference.case import IMAGES
from reference.demo.compare import Cache, compare_caches
from reference.demo.record import Demo
from reference.workload import load_quietly, reference_workload

STEPS = 8
HALF = Cache(name="half", options={"policy": omnireuse.Spread(num_computed=4), "forecaster": "hold"})
MOST = Cache(name="most", options={"policy": omnireuse.Spread(num_computed=6), "forecaster": "hold"})


@pytest.fixture(scope="module")
def workload(model: Path) -> Workload:
    return reference_workload(IMAGES, load_quietly(IMAGES, model), steps=STEPS, guidance=1.0, prompts=2, seed=0)


@pytest.fixture(scope="module")
def compared(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, Path, list[str]]:
    folder, seen = tmp_path_factory.mktemp("demo"), []
    twice = replace(HALF, name="half again")
    checks = [partial(IMAGES.check, scene) for scene in IMAGES.held_out(2, seed=0)]
    made, complete = compare_caches(workload, checks, [HALF, twice, MOST], folder=folder, advance=seen.append)
    assert complete
    comparison = Comparison(command="", created="", environment={}, complete=True, cases=(made.case,))
    return Demo(comparison=comparison, full=made.full, samples=made.samples), folder, seen


def test_caches_that_compute_as_many_steps_share_a_run_of_fewer(compared: tuple[Demo, Path, list[str]]) -> None:
    demo, folder, _ = compared
    assert [point.method for point in demo.case.points] == [
        "half", "fewer steps (4)", "half again", "most", "fewer steps (6)"
    ]  # fmt: skip
    half, plain, _, most, _ = demo.case.points
    assert [demo.baseline_of(place) for place in range(5)] == [1, None, 1, 4, None]
    assert plain.call == "pipeline(prompt, num_inference_steps=4)"
    assert (half.computed_steps, plain.computed_steps) == (pytest.approx(4), 4)
    assert most.psnr is not None
    assert half.psnr is not None
    assert most.psnr.mean > half.psnr.mean
    shown = {sample.image for row in (demo.full, *demo.samples) for sample in row}
    assert {f"images/{path.name}" for path in (folder / "images").iterdir()} == shown
