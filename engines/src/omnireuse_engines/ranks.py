"""The ranks of an engine that decide together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist

from omnireuse import Strategy
from omnireuse.errors import ConfigError
from omnireuse.tuning.loops import RequestPlan

__all__ = ["RankSizes", "deciding_group", "has_ranks", "measures", "refuse_undecidable"]


@dataclass(frozen=True)
class RankSizes:
    """The number of ranks of each kind of parallelism."""

    sequence: int = 1
    tensor: int = 1
    sharded: int = 1
    guidance: int = 1
    data: int = 1


def refuse_undecidable(plan: RequestPlan, sizes: RankSizes, *, place: str) -> None:
    """Refuse a plan that measures if the ranks that must decide alike are no group."""
    strategy = plan.strategy
    if strategy is None or not measures(strategy):
        return
    is_guided = sizes.guidance > 1
    if strategy.region != "step" and strategy.shared_cfg_decision and is_guided:
        raise ConfigError(
            f"{place}: {plan.name} measures, its branches of guidance decide together, and CFG parallelism computes "
            "them on different ranks; give speedup= or computed_steps=, or start the server without CFG parallelism"
        )
    if sum(getattr(sizes, name) > 1 for name in _deciding(strategy)) < 2:
        return
    if sizes.data > 1 or (strategy.region != "step" and is_guided):
        raise ConfigError(
            f"{place}: {plan.name} measures, and the ranks that share a forward pass are no group of their own beside "
            "data or CFG parallelism; give speedup= or computed_steps=, whose steps are known ahead"
        )


def deciding_group(
    plan: RequestPlan, sizes: RankSizes, groups: Mapping[str, dist.ProcessGroup], *, place: str
) -> dist.ProcessGroup | None:
    """The ranks that must decide alike under this plan; None if each may decide alone.

    A schedule that is fixed ahead is the same everywhere. What is measured is added up over the ranks whose collectives
    a reused step leaves out: those of sequence, tensor and fully sharded data parallelism, and in region "step", which
    comes after guidance, those of CFG parallelism.

    Args:
        groups: of the engine, by the names of `RankSizes`.
    """
    strategy = plan.strategy
    if strategy is None or not measures(strategy) or not has_ranks():
        return None
    refuse_undecidable(plan, sizes, place=place)
    shared = [groups[name] for name in _deciding(strategy) if getattr(sizes, name) > 1]
    if len(shared) < 2:
        return shared[0] if shared else None
    return dist.group.WORLD


def _deciding(strategy: Strategy) -> tuple[str, ...]:
    return ("sequence", "tensor", "sharded", *(["guidance"] if strategy.region == "step" else []))


def measures(strategy: Strategy) -> bool:
    """Whether the policy decides by what it measures."""
    return strategy.policy.needs_drift or strategy.policy.needs_error


def has_ranks() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
