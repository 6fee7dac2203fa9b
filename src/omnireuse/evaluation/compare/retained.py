"""How many bytes of tensors hang on something that a library keeps between steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["bytes_of", "hook_states"]


def bytes_of(roots: Iterable[Any]) -> int:
    """Bytes of all tensors that are reached through containers and plain objects; shared storage counts once.

    Modules are not entered: weights are nobody's cache.
    """
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
    """What the caches of diffusers keep: the states of their hooks."""
    found: list[Any] = []
    for module in denoiser.modules():
        registry = getattr(module, "_diffusers_hook", None)
        for hook in getattr(registry, "hooks", {}).values():
            manager = getattr(hook, "state_manager", None)
            found.append(
                getattr(manager, "_state_cache", None) if manager is not None else getattr(hook, "state", None)
            )
    return found
