"""Compute some denoising steps of a pipeline, forecast the rest.

Three calls are all that is needed::

    import omnireuse

    handle = omnireuse.enable(pipe)  # or speedup=2.5, tolerance=0.05, …
    image = pipe(prompt).images[0]  # as before
    print(handle.summary())  # what was computed, what was reused, and why
    handle.disable()  # the pipeline is as it was before

The first three pictures are computed in full and measured; the plan that
suits the pipeline best serves all later ones. `omnireuse.tune` measures
ahead of time, and `omnireuse.calibrate` finds plans for many budgets and
promises their quality::

    omnireuse.tune(pipe, ["a fox", "a castle at night", "two dancers"])
    profile = omnireuse.calibrate(pipe, prompts)
    handle = omnireuse.enable(pipe, profile=profile, quality=40)

`help(omnireuse.enable)` has every option, `help(omnireuse.errors)` every
error, and `omnireuse --help` the commands. Policies and forecasters, the
parts of a strategy, are below.
"""

# Names are imported when first used, so that `import omnireuse` stays light and `omnireuse.core` works without torch.

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireuse import errors
from omnireuse.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse.diffusion.calibration.calibrate import calibrate
    from omnireuse.diffusion.calibration.profile import Profile
    from omnireuse.diffusion.calibration.tea_cache import fit_tea_cache
    from omnireuse.diffusion.handle import Handle, disable, handle_of
    from omnireuse.diffusion.pipelines import enable
    from omnireuse.diffusion.reuse.batch import Row, observe_batch, predict_batch
    from omnireuse.diffusion.reuse.events import Choice, Decision
    from omnireuse.diffusion.reuse.forecasters import (
        BestOrder,
        Blend,
        Fitted,
        Forecaster,
        Hold,
        Memory,
        Polynomial,
    )
    from omnireuse.diffusion.reuse.generation import Generation, layout_of
    from omnireuse.diffusion.reuse.policies import (
        EasyCache,
        ErrorControl,
        FixedSchedule,
        MagCache,
        Never,
        ResidualDiff,
        SeaCache,
        StepMask,
        TeaCache,
    )
    from omnireuse.diffusion.reuse.policy import Policy, StepView
    from omnireuse.diffusion.reuse.schedulers import noise_levels
    from omnireuse.diffusion.reuse.strategy import Strategy
    from omnireuse.diffusion.reuse.summary import Summary
    from omnireuse.diffusion.tuning.ahead import tune
    from omnireuse.diffusion.tuning.state import Tuning
    from omnireuse.evaluation.compare.run import compare_pipeline

__version__ = "0.2.0"

__all__ = [
    "BestOrder",
    "Blend",
    "Choice",
    "Decision",
    "EasyCache",
    "ErrorControl",
    "Fitted",
    "FixedSchedule",
    "Forecaster",
    "Generation",
    "Handle",
    "Hold",
    "MagCache",
    "Memory",
    "Never",
    "Policy",
    "Polynomial",
    "Profile",
    "ResidualDiff",
    "Row",
    "SeaCache",
    "StepMask",
    "StepView",
    "Strategy",
    "Summary",
    "TeaCache",
    "Tuning",
    "__version__",
    "calibrate",
    "compare_pipeline",
    "disable",
    "enable",
    "errors",
    "fit_tea_cache",
    "handle_of",
    "layout_of",
    "noise_levels",
    "observe_batch",
    "predict_batch",
    "tune",
]

_HOMES = {
    "diffusion.calibration.calibrate": "calibrate",
    "diffusion.calibration.profile": "Profile",
    "diffusion.calibration.tea_cache": "fit_tea_cache",
    "diffusion.handle": "Handle disable handle_of",
    "diffusion.pipelines": "enable",
    "diffusion.reuse.batch": "Row observe_batch predict_batch",
    "diffusion.reuse.events": "Choice Decision",
    "diffusion.reuse.forecasters": "BestOrder Blend Fitted Forecaster Hold Memory Polynomial",
    "diffusion.reuse.generation": "Generation layout_of",
    "diffusion.reuse.schedulers": "noise_levels",
    "diffusion.reuse.policies": (
        "EasyCache ErrorControl FixedSchedule MagCache Never ResidualDiff SeaCache StepMask TeaCache"
    ),
    "diffusion.reuse.policy": "Policy StepView",
    "diffusion.reuse.strategy": "Strategy",
    "diffusion.reuse.summary": "Summary",
    "diffusion.tuning.ahead": "tune",
    "diffusion.tuning.state": "Tuning",
    "evaluation.compare.run": "compare_pipeline",
}
"""Module -> the names that come from it."""

__getattr__, _ = lazy_exports(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
