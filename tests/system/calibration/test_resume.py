"""One search, however often it is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import omnireuse
from omnireuse import Profile
from omnireuse.calibration.progress import Progress
from omnireuse.errors import ConfigError
from reference.load import SAMPLING, find_image_pipeline, load_image_pipeline

PROMPTS = [f"a large {colour} circle on a plain gray background" for colour in ("red", "green", "blue", "white")]
OPTIONS: dict[str, Any] = {**SAMPLING, "true_cfg_scale": 1.0, "negative_prompt": None, "steps": 6}
OPTIONS |= {"computed_steps": [3, 4], "evaluations": 9, "batch_size": 2}
del OPTIONS["num_inference_steps"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So that the last digits agree."""
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


class Killed(BaseException):
    """What no handler expects."""


def test_a_search_that_was_killed_goes_on_where_it_was(folder: Path, whole: Profile) -> None:
    seen: list[Progress] = []

    def kill(progress: Progress) -> None:
        seen.append(progress)
        if sum(each.doing.endswith("of 6 steps") for each in seen) == 2:
            raise Killed

    with pytest.raises(Killed):
        omnireuse.calibrate(find_image_pipeline(), PROMPTS, journal=folder / "cut", watch=kill, **OPTIONS)
    # A function that makes the pipeline does as well as its folder.
    again = omnireuse.calibrate(load_image_pipeline, PROMPTS, journal=folder / "cut", watch=seen.append, **OPTIONS)
    assert replace(again, cost_in_runs=0.0) == replace(whole, cost_in_runs=0.0)
    assert again.cost_in_runs - whole.cost_in_runs == pytest.approx(len(PROMPTS)), "only the full runs were made twice"
    assert seen[-1].runs == pytest.approx(again.cost_in_runs, abs=0.1)


def test_the_journal_of_another_search_is_refused(folder: Path, whole: Profile) -> None:
    pipeline = load_image_pipeline()
    with torch.no_grad():
        next(pipeline.transformer.parameters()).add_(1)
    for source, options, complaint in (
        (pipeline, OPTIONS, "begun with another pipeline;"),
        (find_image_pipeline(), OPTIONS | {"seed": 1}, "begun with another seed;"),
        (find_image_pipeline(), OPTIONS | {"steps": 7}, "another num_inference_steps"),
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


def test_an_interrupt_keeps_what_was_found(whole: Profile) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.doing == "3 of 6 steps" and progress.done == 2:
            raise KeyboardInterrupt

    found = omnireuse.calibrate(load_image_pipeline, PROMPTS, watch=interrupt, **OPTIONS)
    assert not found.complete
    assert sorted(found.plans) == [3]
    assert len(found.plans[3].held_out) == 1
