"""Bytes of tensors that a library keeps between steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["bytes_of", "hook_states"]


def bytes_of(roots: Iterable[Any]) -> int:
    """Bytes of all tensors within containers and plain objects. Shared storage counts once, weights of modules do not
    count."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    left = list(roots)
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, (torch.nn.Module, type, str, bytes)):
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            storage = each.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(each, dict):
            left.extend(each.values())
        elif isinstance(each, (list, tuple, set)):
            left.extend(each)
        else:
            left.extend(getattr(each, "__dict__", {}).values())
    return sum(storages.values())


def hook_states(denoiser: torch.nn.Module) -> list[Any]:
    """The states that the hooks of diffusers keep on a denoiser."""
    registries = [getattr(module, "_diffusers_hook", None) for module in denoiser.modules()]
    hooks = [hook for registry in registries for hook in getattr(registry, "hooks", {}).values()]
    managed = [getattr(hook, "state_manager", None) for hook in hooks]
    return [
        getattr(hook, "state", None) if manager is None else getattr(manager, "_state_cache", None)
        for hook, manager in zip(hooks, managed, strict=True)
    ]
