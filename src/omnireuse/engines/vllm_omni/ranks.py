"""The vllm-omni ranks that decide together: its own process groups."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch.distributed as dist

from omnireuse.engines.settings import RequestPlan
from omnireuse.errors import ConfigError
from omnireuse.loop.strategy import Strategy

__all__ = ["RankSizes", "deciding_group", "has_ranks", "refuse_shared_encoder", "refuse_stages", "refuse_undecidable"]


@dataclass(frozen=True)
class RankSizes:
    """The number of ranks of each kind of parallelism."""

    sequence: int = 1
    tensor: int = 1
    sharded: int = 1
    guidance: int = 1
    data: int = 1

    @classmethod
    def of(cls, parallel: Any) -> RankSizes:
        """The sizes in vllm-omni's `DiffusionParallelConfig`; 1 if it says nothing."""

        def size(name: str) -> int:
            return int(getattr(parallel, name, None) or 1)

        is_sharded = bool(getattr(parallel, "use_hsdp", False))
        return cls(
            sequence=size("sequence_parallel_size"),
            tensor=size("tensor_parallel_size"),
            sharded=size("hsdp_shard_size") if is_sharded else 1,
            guidance=size("cfg_parallel_size"),
            data=size("data_parallel_size"),
        )


def refuse_undecidable(plan: RequestPlan, sizes: RankSizes, *, place: str) -> None:
    """Refuse a plan that measures if the ranks that must decide alike are no group."""
    strategy = plan.strategy
    if strategy is None or not _measures(strategy):
        return
    is_guided = sizes.guidance > 1
    if strategy.region != "step" and strategy.shared_cfg_decision and is_guided:
        raise ConfigError(
            f"{place}: {plan.name} measures, its branches of guidance decide together, and CFG parallelism computes "
            "them on different ranks; give speedup= or computed_steps=, or start the server without CFG parallelism"
        )
    shared = [sizes.sequence, sizes.tensor, sizes.sharded, *([sizes.guidance] if strategy.region == "step" else [])]
    if sum(size > 1 for size in shared) < 2:
        return
    if sizes.data > 1 or (strategy.region != "step" and is_guided):
        raise ConfigError(
            f"{place}: {plan.name} measures, and the ranks that share a forward pass are no group of their own beside "
            "data or CFG parallelism; give speedup= or computed_steps=, whose steps are known ahead"
        )


def deciding_group(plan: RequestPlan, *, place: str) -> dist.ProcessGroup | None:
    """The ranks that must decide alike under this plan; None if each may decide alone.

    A schedule that is fixed ahead is the same everywhere. What is measured is added up over the ranks whose collectives
    a reused step leaves out: those of sequence, tensor and fully sharded data parallelism, and in region "step", which
    comes after guidance, those of CFG parallelism.
    """
    strategy = plan.strategy
    if strategy is None or not _measures(strategy) or not has_ranks():
        return None
    parallel = _parallel_state()
    sequence, guidance = parallel.get_sp_group(), parallel.get_cfg_group()
    tensor = import_module("vllm.distributed.parallel_state").get_tp_group()
    groups = [sequence, tensor, *([parallel.get_fs_group()] if parallel._FS is not None else [])]
    sizes = RankSizes(
        sequence.world_size,
        tensor.world_size,
        groups[2].world_size if len(groups) > 2 else 1,
        guidance.world_size,
        parallel.get_data_parallel_world_size(),
    )
    refuse_undecidable(plan, sizes, place=place)
    if strategy.region == "step":
        groups.append(guidance)
    shared = [group.device_group for group in groups if group.world_size > 1]
    if len(shared) < 2:
        return shared[0] if shared else None
    return dist.group.WORLD


def refuse_stages(place: str) -> None:
    """Raise a ConfigError under pipeline parallelism: only the last stage sees the outputs that are to be forecast."""
    if has_ranks() and (stages := _parallel_state().get_pipeline_parallel_world_size()) > 1:
        raise ConfigError(
            f"{place}: only the last of {stages} pipeline stages sees the model's output, so the ranks cannot forecast "
            "alike; start the server with pipeline_parallel_size=1, or without --cache-backend omnireuse"
        )


def refuse_shared_encoder(pipeline: Any, *, place: str) -> None:
    """Raise a ConfigError if ranks may encode a prompt together: an outside store may answer one and not another."""
    parallel = getattr(getattr(pipeline, "od_config", None), "parallel_config", None)
    sizes = {name: getattr(parallel, name, 1) for name in ("tensor_parallel_size", "text_encoder_tp_size", "use_hsdp")}
    if given := ", ".join(f"{name}={size}" for name, size in sizes.items() if int(size) > 1 or size is True):
        raise ConfigError(
            f"{place}(prompt_store=…): ranks that share a text encoder ({given}) wait for each other if the store "
            "answers only some of them; give prompt_cache alone, which is the same on all ranks"
        )


def _measures(strategy: Strategy) -> bool:
    return strategy.policy.needs_drift or strategy.policy.needs_error


def has_ranks() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _parallel_state() -> Any:
    return import_module("vllm_omni.diffusion.distributed.parallel_state")
