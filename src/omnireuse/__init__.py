"""Compute some denoising steps of a pipeline, forecast the rest.

Three calls are all that is needed::

    import omnireuse

    handle = omnireuse.enable(pipe)  # or speedup=2.5, tolerance=0.05, …
    image = pipe(prompt).images[0]  # as before
    print(handle.summary())  # what was computed, what was reused, and why
    handle.disable()  # the pipeline is as it was before

Results come closer to those of the full run with a profile, which is
searched once, on prompts of your own::

    profile = omnireuse.calibrate(pipe, prompts)
    profile.save("profile.json")
    handle = omnireuse.enable(pipe, profile="profile.json")

`help(omnireuse.enable)` has every option, `help(omnireuse.errors)` every
error, and `omnireuse --help` the commands. Policies and forecasters, the
parts of a strategy, are below.
"""

# Names are imported when first used, so that `import omnireuse` stays light and `omnireuse.core` works without torch.

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from omnireuse import errors

if TYPE_CHECKING:
    from omnireuse.diffusion.calibration.calibrate import calibrate
    from omnireuse.diffusion.calibration.profile import Profile
    from omnireuse.diffusion.calibration.tea_cache import fit_tea_cache
    from omnireuse.diffusion.handle import Handle, disable, handle_of
    from omnireuse.diffusion.pipelines import enable
    from omnireuse.diffusion.reuse.batch import Row, observe_batch, predict_batch
    from omnireuse.diffusion.reuse.branch_state import layout_of
    from omnireuse.diffusion.reuse.choice import Choice
    from omnireuse.diffusion.reuse.events import Decision
    from omnireuse.diffusion.reuse.forecasters import (
        BestOrder,
        Blend,
        Fitted,
        Forecaster,
        Hermite,
        Hold,
        Memory,
        Polynomial,
    )
    from omnireuse.diffusion.reuse.generation import Generation
    from omnireuse.diffusion.reuse.noise import noise_levels
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
    from omnireuse.diffusion.reuse.strategy import Strategy
    from omnireuse.diffusion.reuse.summary import Summary
    from omnireuse.evaluation.compare.run import compare_pipeline

__version__ = "0.1.0"

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
    "Hermite",
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
]

_HOME = {
    "BestOrder": "omnireuse.diffusion.reuse.forecasters",
    "Blend": "omnireuse.diffusion.reuse.forecasters",
    "calibrate": "omnireuse.diffusion.calibration.calibrate",
    "compare_pipeline": "omnireuse.evaluation.compare.run",
    "Choice": "omnireuse.diffusion.reuse.choice",
    "Decision": "omnireuse.diffusion.reuse.events",
    "disable": "omnireuse.diffusion.handle",
    "EasyCache": "omnireuse.diffusion.reuse.policies",
    "enable": "omnireuse.diffusion.pipelines",
    "ErrorControl": "omnireuse.diffusion.reuse.policies",
    "fit_tea_cache": "omnireuse.diffusion.calibration.tea_cache",
    "Fitted": "omnireuse.diffusion.reuse.forecasters",
    "FixedSchedule": "omnireuse.diffusion.reuse.policies",
    "Forecaster": "omnireuse.diffusion.reuse.forecasters",
    "Generation": "omnireuse.diffusion.reuse.generation",
    "Handle": "omnireuse.diffusion.handle",
    "handle_of": "omnireuse.diffusion.handle",
    "Hermite": "omnireuse.diffusion.reuse.forecasters",
    "Hold": "omnireuse.diffusion.reuse.forecasters",
    "layout_of": "omnireuse.diffusion.reuse.branch_state",
    "MagCache": "omnireuse.diffusion.reuse.policies",
    "Memory": "omnireuse.diffusion.reuse.forecasters",
    "Never": "omnireuse.diffusion.reuse.policies",
    "noise_levels": "omnireuse.diffusion.reuse.noise",
    "observe_batch": "omnireuse.diffusion.reuse.batch",
    "Policy": "omnireuse.diffusion.reuse.policy",
    "Polynomial": "omnireuse.diffusion.reuse.forecasters",
    "predict_batch": "omnireuse.diffusion.reuse.batch",
    "Profile": "omnireuse.diffusion.calibration.profile",
    "ResidualDiff": "omnireuse.diffusion.reuse.policies",
    "Row": "omnireuse.diffusion.reuse.batch",
    "SeaCache": "omnireuse.diffusion.reuse.policies",
    "StepMask": "omnireuse.diffusion.reuse.policies",
    "StepView": "omnireuse.diffusion.reuse.policy",
    "Strategy": "omnireuse.diffusion.reuse.strategy",
    "Summary": "omnireuse.diffusion.reuse.summary",
    "TeaCache": "omnireuse.diffusion.reuse.policies",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'omnireuse' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
