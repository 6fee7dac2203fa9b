"""The policies by name. Each answers "compute or reuse?" from scalars alone and imports without torch."""

from __future__ import annotations

from omnireuse.base.registry import Registry
from omnireuse.base.validation import look_up
from omnireuse.policies.base import Policy
from omnireuse.policies.by_change import EasyCache, ResidualDiff, SeaCache, TeaCache
from omnireuse.policies.error_control import ErrorControl
from omnireuse.policies.fixed import EveryNth, Never, StepMask, Steps, scm_mask
from omnireuse.policies.mag_cache import MagCache
from omnireuse.policies.spread import Spread

__all__ = [
    "POLICIES",
    "EasyCache",
    "ErrorControl",
    "EveryNth",
    "MagCache",
    "Never",
    "ResidualDiff",
    "SeaCache",
    "Spread",
    "StepMask",
    "Steps",
    "TeaCache",
    "policy_named",
    "scm_mask",
]

POLICIES: Registry[type[Policy]] = Registry(
    "omnireuse.policies",
    {
        "easy_cache": EasyCache,
        "error_control": ErrorControl,
        "fixed": EveryNth,
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
    return look_up("policy", name, POLICIES)()
