"""Reuse for generative multimodal inference: do not compute what is already known.

The names below are imported when first used, so that `import omnireuse` stays light and the bookkeeping in
`omnireuse.core` works without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnireuse.diffusion.calibration.profile import Profile
    from omnireuse.diffusion.calibration.tea_cache import fit_tea_cache
    from omnireuse.diffusion.handle import Handle
    from omnireuse.diffusion.pipelines import enable
    from omnireuse.diffusion.reuse.events import Decision
    from omnireuse.diffusion.reuse.forecasters import BestOrder, Blend, Fitted, Hermite, Hold, Polynomial
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
    from omnireuse.diffusion.reuse.strategy import Strategy
    from omnireuse.diffusion.reuse.summary import Summary
    from omnireuse.search.calibrate import calibrate

__version__ = "0.1.0"

__all__ = [
    "BestOrder",
    "Blend",
    "Decision",
    "EasyCache",
    "ErrorControl",
    "Fitted",
    "FixedSchedule",
    "Handle",
    "Hermite",
    "Hold",
    "MagCache",
    "Never",
    "Polynomial",
    "Profile",
    "ResidualDiff",
    "SeaCache",
    "StepMask",
    "Strategy",
    "Summary",
    "TeaCache",
    "__version__",
    "calibrate",
    "enable",
    "fit_tea_cache",
]

_HOME = {
    "BestOrder": "omnireuse.diffusion.reuse.forecasters",
    "Blend": "omnireuse.diffusion.reuse.forecasters",
    "Fitted": "omnireuse.diffusion.reuse.forecasters",
    "Decision": "omnireuse.diffusion.reuse.events",
    "EasyCache": "omnireuse.diffusion.reuse.policies",
    "ErrorControl": "omnireuse.diffusion.reuse.policies",
    "FixedSchedule": "omnireuse.diffusion.reuse.policies",
    "Handle": "omnireuse.diffusion.handle",
    "Hermite": "omnireuse.diffusion.reuse.forecasters",
    "Hold": "omnireuse.diffusion.reuse.forecasters",
    "MagCache": "omnireuse.diffusion.reuse.policies",
    "Never": "omnireuse.diffusion.reuse.policies",
    "Polynomial": "omnireuse.diffusion.reuse.forecasters",
    "Profile": "omnireuse.diffusion.calibration.profile",
    "ResidualDiff": "omnireuse.diffusion.reuse.policies",
    "SeaCache": "omnireuse.diffusion.reuse.policies",
    "StepMask": "omnireuse.diffusion.reuse.policies",
    "Strategy": "omnireuse.diffusion.reuse.strategy",
    "Summary": "omnireuse.diffusion.reuse.summary",
    "TeaCache": "omnireuse.diffusion.reuse.policies",
    "calibrate": "omnireuse.search.calibrate",
    "enable": "omnireuse.diffusion.pipelines",
    "fit_tea_cache": "omnireuse.diffusion.calibration.tea_cache",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'omnireuse' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
