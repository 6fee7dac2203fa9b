"""Ranks that share a denoiser's forward pass, read from the model's own parallelism."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from omnireuse.errors import StateError
from omnireuse.hooks.denoisers import model_name, unwrapped
from omnireuse.loop.agreement import Agreement
from omnireuse.policies.base import Policy

__all__ = ["check_agreement", "forward_group"]

logger = logging.getLogger("omnireuse")


def forward_group(denoisers: Iterable[torch.nn.Module]) -> dist.ProcessGroup | None:
    """The ranks whose collectives these denoisers' forwards enter; None where each rank runs its own model.

    Known are the context parallelism of diffusers (`enable_parallelism`) and parameters that are spread over a device
    mesh (`fully_shard`, tensor parallelism).

    Raises:
        StateError: the denoisers name several groups.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    groups = {dist.get_process_group_ranks(group).__repr__(): group for each in denoisers for group in _groups(each)}
    if len(groups) > 1:
        raise StateError(
            f"enable: the denoisers run in several process groups ({', '.join(groups)}), so the ranks that must decide "
            "alike are not known; give them as group="
        )
    for ranks, group in groups.items():
        logger.info("ranks %s share the denoiser's forward pass, and decide alike", ranks)
        return group
    return None


def check_agreement(policy: Policy, agreement: Agreement, denoiser: torch.nn.Module) -> None:
    """Raise a StateError where a policy would measure on one of several ranks alone: they would wait for each other."""
    if not (policy.needs_drift or policy.needs_error) or not agreement.is_alone:
        return
    if forward_group([denoiser]) is not None:
        raise StateError(
            f"{type(policy).__name__} measures, and {model_name(denoiser)} was made parallel after reuse was enabled; "
            "call omnireuse.disable(pipeline) and enable it again, so that the ranks decide alike"
        )


def _groups(denoiser: torch.nn.Module) -> Iterator[dist.ProcessGroup]:
    model = unwrapped(denoiser)
    parallel: Any = getattr(getattr(model, "_parallel_config", None), "context_parallel_config", None)
    mesh = getattr(parallel, "_flattened_mesh", None)
    if mesh is not None and mesh.size() > 1:
        yield mesh.get_group()
    spread = next((each.device_mesh for each in model.parameters() if hasattr(each, "device_mesh")), None)
    if spread is not None and spread.size() > 1:
        yield spread.get_group() if spread.ndim == 1 else spread._flatten().get_group()
