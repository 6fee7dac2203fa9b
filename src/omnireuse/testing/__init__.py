"""Contracts of policies, forecasters, adapters and tiers, for any package.

Each is one function. It raises an AssertionError that names the broken requirement::

    from omnireuse.testing import check_policy

    def test_my_policy():
        check_policy(MyPolicy(threshold=0.2))
"""

from omnireuse.testing.adapters import check_adapter
from omnireuse.testing.forecasters import check_forecaster
from omnireuse.testing.policies import check_policy
from omnireuse.testing.tiers import check_tier

__all__ = ["check_adapter", "check_forecaster", "check_policy", "check_tier"]
