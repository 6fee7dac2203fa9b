"""Contracts of policies, forecasters, adapters and tiers, for any package.

Each is one function. It raises an AssertionError that names the broken requirement::

    from omnireuse.testing import check_policy

    def test_my_policy():
        check_policy(MyPolicy(threshold=0.2))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireuse.base.lazy import lazy_exports

if TYPE_CHECKING:
    from omnireuse.testing.adapters import check_adapter
    from omnireuse.testing.forecasters import check_forecaster
    from omnireuse.testing.policies import check_policy
    from omnireuse.testing.tiers import check_tier

__all__ = ["check_adapter", "check_forecaster", "check_policy", "check_tier"]

_HOMES = {
    "adapters": "check_adapter",
    "forecasters": "check_forecaster",
    "policies": "check_policy",
    "tiers": "check_tier",
}
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
