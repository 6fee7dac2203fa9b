"""One search, whoever does the runs and however often it is cut off."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import omnireuse
from omnireuse import Profile
from omnireuse.diffusion.calibration.progress import Progress
from omnireuse.errors import ConfigError, MissingExtraError
from reference.load import SAMPLING, find_image_pipeline, load_image_pipeline

PROMPTS = [f"a large {colour} circle on a plain gray background" for colour in ("red", "green", "blue", "white")]
OPTIONS: dict[str, Any] = {**SAMPLING, "true_cfg_scale": 1.0, "negative_prompt": None, "steps": 6}
OPTIONS |= {"computed_steps": [3, 4], "evaluations": 9, "batch_size": 2}
del OPTIONS["num_inference_steps"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A worker's number of threads, so that the last digits agree."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Profile:
    return omnireuse.calibrate(find_image_pipeline(), PROMPTS, journal=folder / "whole", **OPTIONS)


def test_a_search_that_was_killed_goes_on_where_it_was(
    folder: Path, whole: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    lines = (folder / "whole").read_bytes().splitlines(keepends=True)
    (folder / "cut").write_bytes(b"".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:20])
    seen: list[Progress] = []
    # A function that makes the pipeline does as well as its folder.
    again = omnireuse.calibrate(load_image_pipeline, PROMPTS, journal=folder / "cut", watch=seen.append, **OPTIONS)
    assert "cut off" in caplog.text
    assert replace(again, cost_in_runs=0.0) == replace(whole, cost_in_runs=0.0)
    # The full runs were made twice, and at most the weights of the two plans; the rest once.
    twice = again.cost_in_runs - whole.cost_in_runs
    assert len(PROMPTS) - 0.1 <= twice <= len(PROMPTS) + (3 + 4) / 6 * 3 + 0.1
    assert seen[-1].runs == pytest.approx(again.cost_in_runs, abs=0.1)
    scored = [line for line in (folder / "cut").read_text().splitlines() if "candidate" in line]
    assert len(scored) == len(set(scored)), "nothing is scored twice"


def test_the_journal_of_another_search_is_refused(folder: Path, whole: Profile) -> None:
    pipeline = load_image_pipeline()
    with torch.no_grad():
        next(pipeline.transformer.parameters()).add_(1)
    for source, options, complaint in (
        (pipeline, OPTIONS, r"\(pipeline \w+ instead of \w+\)"),
        (find_image_pipeline(), OPTIONS | {"seed": 1}, r"\(seed 0 instead of 1\)"),
        (find_image_pipeline(), OPTIONS | {"steps": 7}, "num_inference_steps 6 instead of 7"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            omnireuse.calibrate(source, PROMPTS, journal=folder / "whole", **options)


def test_the_estimate_holds(whole: Profile, folder: Path) -> None:
    seen: list[Progress] = []
    again = omnireuse.calibrate(find_image_pipeline(), PROMPTS, journal=folder / "whole", watch=seen.append, **OPTIONS)
    begun = next(progress for progress in seen if progress.done == progress.total)
    assert begun.doing == "full runs"
    assert begun.seconds_left is not None
    assert begun.runs + begun.runs_left >= again.cost_in_runs - 0.1
    searched = [progress.best for progress in seen if progress.doing == "3 of 6 steps"]
    assert None not in searched
    assert searched == sorted(searched), "the best so far never gets worse"


@pytest.mark.slow
def test_workers_find_the_same(whole: Profile) -> None:
    pytest.importorskip("ray", reason="the extra omnireuse[ray] is not installed")
    found = omnireuse.calibrate(find_image_pipeline(), PROMPTS, workers=2, **OPTIONS)
    assert replace(found, plans={}, measured=None) == replace(whole, plans={}, measured=None)
    assert sorted(found.plans) == sorted(whole.plans)
    for count, plan in found.plans.items():
        expected = whole.plans[count]
        assert (plan.steps, plan.forecaster) == (expected.steps, expected.forecaster)
        # Matrix products may differ in their last digits from one process to another.
        assert (plan.psnr, *plan.held_out) == pytest.approx((expected.psnr, *expected.held_out), abs=0.05)


@pytest.mark.slow
def test_an_interrupt_keeps_what_workers_found_and_sends_them_home(whole: Profile) -> None:
    ray = pytest.importorskip("ray", reason="the extra omnireuse[ray] is not installed")

    def interrupt(progress: Progress) -> None:
        if progress.doing == "3 of 6 steps" and progress.done == 2:
            raise KeyboardInterrupt

    found = omnireuse.calibrate(load_image_pipeline, PROMPTS, workers=1, watch=interrupt, **OPTIONS)
    assert not found.complete
    assert sorted(found.plans) == [3]
    assert len(found.plans[3].held_out) == 1
    assert not ray.is_initialized()


def test_workers_need_something_to_load() -> None:
    with pytest.raises(ConfigError, match="give the folder"):
        omnireuse.calibrate(object(), PROMPTS, workers=2)
    with pytest.raises(ConfigError, match="workers must be a whole number"):
        omnireuse.calibrate(object(), PROMPTS, workers=-1)


def test_workers_without_ray_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"omnireuse\[ray\]"):
        omnireuse.calibrate(os.curdir, PROMPTS, workers=2)
