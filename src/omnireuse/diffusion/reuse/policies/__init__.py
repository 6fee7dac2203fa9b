"""The policies by name. Each answers "compute or reuse?" from scalars alone and imports without torch."""

from __future__ import annotations

from omnireuse.diffusion.reuse.policies.accumulated import EasyCache, SeaCache
from omnireuse.diffusion.reuse.policies.error_control import ErrorControl
from omnireuse.diffusion.reuse.policies.fixed import FixedSchedule
from omnireuse.diffusion.reuse.policies.mag_cache import MagCache
from omnireuse.diffusion.reuse.policies.never import Never
from omnireuse.diffusion.reuse.policies.residual_diff import ResidualDiff
from omnireuse.diffusion.reuse.policies.spread import scm_mask
from omnireuse.diffusion.reuse.policies.step_mask import StepMask
from omnireuse.diffusion.reuse.policies.tea_cache import TeaCache
from omnireuse.diffusion.reuse.policy import Policy
from omnireuse.errors import UnknownNameError
from omnireuse.registry import Registry

__all__ = [
    "POLICIES",
    "EasyCache",
    "ErrorControl",
    "FixedSchedule",
    "MagCache",
    "Never",
    "ResidualDiff",
    "SeaCache",
    "StepMask",
    "TeaCache",
    "policy_named",
    "scm_mask",
]

POLICIES: Registry[type[Policy]] = Registry(
    "omnireuse.policies",
    {
        "easy_cache": EasyCache,
        "error_control": ErrorControl,
        "fixed": FixedSchedule,
        "never": Never,
        "residual_diff": ResidualDiff,
        "scm": StepMask,
        "sea_cache": SeaCache,
        "tea_cache": TeaCache,
    },
)
"""The package's own, and those of the entry points `omnireuse.policies`."""


def policy_named(name: str) -> Policy:
    """The policy of that name with its defaults; an UnknownNameError names the nearest.

    `MagCache` has no name here: without its model's ratios it means nothing. The backend "mag_cache" finds them.
    """
    if name not in POLICIES:
        raise UnknownNameError("policy", name, POLICIES)
    return POLICIES[name]()
