"""The reference pipelines as workloads: held-out captions, and the checkers that read the pictures."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from omnireuse.base.loading import quiet_loading
from omnireuse_lab.compare.workload import Workload, guided_call
from reference.case import Case

__all__ = ["load_quietly", "reference_workload"]

CALIBRATION_SEED = 3000
"""Of captions and noise, those of the profiles' searches; comparisons use 9000 and above."""


def load_quietly(case: Case, folder: Path) -> Any:
    """The pipeline in `folder`, without messages of the libraries that load it; its own progress bar is off."""
    with quiet_loading():
        pipeline = case.load(folder, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def reference_workload(
    case: Case,
    pipeline: Any,
    *,
    steps: int,
    guidance: float,
    prompts: int,
    seed: int,
    calibration: int = 0,
    name: str | None = None,
) -> Workload:
    """One case with captions that training never saw; `seed` decides them and the noise. The further score of a picture
    is the share of its caption's attributes that the checker finds in it.

    Args:
        calibration: how many further captions methods may calibrate themselves on; searches use the same ones.
    """
    scenes = case.held_out(prompts, seed=seed)
    captions = tuple(case.caption(scene) for scene in scenes)
    further = dict.fromkeys(case.caption(scene) for scene in case.held_out(2 * calibration, seed=CALIBRATION_SEED))
    by_caption = dict(zip(captions, scenes, strict=True))

    def right(picture: Any, full: Any, caption: str) -> float:
        return statistics.fmean(case.check(by_caption[caption], picture).values())

    rest = ("num_inference_steps", "negative_prompt", case.guidance)
    return Workload(
        name=name or case.name,
        pipeline=pipeline,
        steps=steps,
        guidance=guidance,
        prompts=captions,
        calibration=tuple(caption for caption in further if caption not in captions)[:calibration],
        calibration_seed=CALIBRATION_SEED,
        seed=seed,
        call={key: value for key, value in case.sampling.items() if key not in rest} | guided_call(pipeline, guidance),
        scores={"attributes right": right},
    )
