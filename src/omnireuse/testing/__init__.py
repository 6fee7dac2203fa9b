"""Contracts that every policy, forecaster, eviction policy and tier keeps; other packages can run them on theirs.

Each is one function that raises an AssertionError whose message says what is broken. They need nothing but the package:

    from omnireuse.testing import check_policy

    def test_my_policy():
        check_policy(MyPolicy(threshold=0.2))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireuse.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse.testing.eviction_policies import check_eviction_policy
    from omnireuse.testing.forecasters import check_forecaster
    from omnireuse.testing.policies import check_policy
    from omnireuse.testing.tiers import check_tier

__all__ = ["check_eviction_policy", "check_forecaster", "check_policy", "check_tier"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "check_eviction_policy": "omnireuse.testing.eviction_policies",
        "check_forecaster": "omnireuse.testing.forecasters",
        "check_policy": "omnireuse.testing.policies",
        "check_tier": "omnireuse.testing.tiers",
    },
)
