"""Compute some denoising steps of a pipeline, forecast the rest.

Three calls are all that is needed::

    import omnireuse

    handle = omnireuse.enable(pipe)  # or speedup=2.5, quality=40, …
    image = pipe(prompt).images[0]  # as before
    print(handle.summary())  # what was computed, what was reused, and why
    handle.disable()  # the pipeline is as it was before

The first three pictures are computed in full and measured; the plan that suits the
pipeline best serves all later ones. `omnireuse.tune` measures ahead of time, and
`omnireuse.calibrate` finds plans for many budgets and promises their quality::

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
from omnireuse.base.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse.arguments.tune import TuneOptions
    from omnireuse.calibration.calibrate import calibrate
    from omnireuse.calibration.tune import tune
    from omnireuse.diffusion.cache.prompt_embed_cache import install_prompt_embed_cache, uninstall_prompt_embed_cache
    from omnireuse.forecasters import (
        Blend,
        Fitted,
        Forecaster,
        Hold,
        Memory,
        Polynomial,
    )
    from omnireuse.front import enable
    from omnireuse.handle import Handle, disable, handle_of
    from omnireuse.loop.events import Choice, Decision
    from omnireuse.loop.generation import Generation, layout_of
    from omnireuse.loop.strategy import Strategy
    from omnireuse.modulation.cache import ModulationCache, install_modulation_cache, uninstall_modulation_cache
    from omnireuse.named.measuring import fit_tea_cache
    from omnireuse.noise.schedulers import noise_levels
    from omnireuse.policies import (
        EasyCache,
        ErrorControl,
        EveryNth,
        MagCache,
        Never,
        ResidualDiff,
        SeaCache,
        Spread,
        StepMask,
        Steps,
        TeaCache,
    )
    from omnireuse.policies.base import Policy, StepView
    from omnireuse.profiles.profile import Profile
    from omnireuse.summary.summary import Summary
    from omnireuse.summary.tuning import Tuning

__version__ = "0.3.0"

__all__ = [
    "Blend",
    "Choice",
    "Decision",
    "EasyCache",
    "ErrorControl",
    "EveryNth",
    "Fitted",
    "Forecaster",
    "Generation",
    "Handle",
    "Hold",
    "MagCache",
    "Memory",
    "ModulationCache",
    "Never",
    "Policy",
    "Polynomial",
    "Profile",
    "ResidualDiff",
    "SeaCache",
    "Spread",
    "StepMask",
    "StepView",
    "Steps",
    "Strategy",
    "Summary",
    "TeaCache",
    "TuneOptions",
    "Tuning",
    "__version__",
    "calibrate",
    "disable",
    "enable",
    "errors",
    "fit_tea_cache",
    "handle_of",
    "install_modulation_cache",
    "install_prompt_embed_cache",
    "layout_of",
    "noise_levels",
    "tune",
    "uninstall_modulation_cache",
    "uninstall_prompt_embed_cache",
]

_HOMES = {
    "arguments.tune": "TuneOptions",
    "calibration.calibrate": "calibrate",
    "profiles.profile": "Profile",
    "named.measuring": "fit_tea_cache",
    "diffusion.cache.prompt_embed_cache": "install_prompt_embed_cache uninstall_prompt_embed_cache",
    "handle": "Handle disable handle_of",
    "front": "enable",
    "loop.events": "Choice Decision",
    "forecasters": "Blend Fitted Forecaster Hold Memory Polynomial",
    "loop.generation": "Generation layout_of",
    "modulation.cache": "ModulationCache install_modulation_cache uninstall_modulation_cache",
    "noise.schedulers": "noise_levels",
    "policies": ("EasyCache ErrorControl EveryNth MagCache Never ResidualDiff SeaCache Spread StepMask Steps TeaCache"),
    "policies.base": "Policy StepView",
    "loop.strategy": "Strategy",
    "summary.summary": "Summary",
    "calibration.tune": "tune",
    "summary.tuning": "Tuning",
}
"""Module -> the names that come from it."""

__getattr__, _ = lazy_exports(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
