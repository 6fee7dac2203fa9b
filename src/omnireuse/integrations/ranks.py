"""Several ranks that run one request must all compute a step or all reuse it."""

from __future__ import annotations

import torch.distributed as dist

from omnireuse.errors import ConfigError
from omnireuse.integrations.settings import Plan

__all__ = ["on_ranks", "world_size"]


def world_size() -> int:
    """Ranks of this process's engine."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def on_ranks(plan: Plan, ranks: int, *, place: str) -> Plan:
    """The plan, where so many ranks can follow it.

    Args:
        plan: of a request.
        ranks: that run it together.
        place: where its settings were written down, for the error.

    Raises:
        ConfigError: a strategy that measures, on several ranks: what they measure would differ.
    """
    policy = None if plan.strategy is None else plan.strategy.policy
    if policy is not None and (policy.needs_drift or policy.needs_error) and ranks > 1:
        raise ConfigError(
            f"{place}: {plan.name} measures at each step, and {ranks} ranks might decide differently; give speedup=, "
            "computed_steps= or a profile, whose steps are known ahead"
        )
    return plan
