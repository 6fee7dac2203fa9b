"""Group offloading of diffusers: what has its rows is no longer streamed with its group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

__all__ = ["Groups"]


class Groups:
    """The groups of one denoiser whose modules were taken out; `restore` puts them back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, dict[str, Any]]] = []

    def of(self, denoiser: nn.Module) -> list[Any]:
        """The groups that diffusers streams from host memory."""
        registries = [vars(each).get("_diffusers_hook") for each in denoiser.modules()]
        hooks = [None if each is None else each.get_hook("group_offloading") for each in registries]
        groups = {id(hook.group): hook.group for hook in hooks if hook is not None}
        return [each for each in groups.values() if each.offload_to_disk_path is None]

    def take_out(self, denoiser: nn.Module, modules: Collection[nn.Module]) -> None:
        """Leave these modules where they are when their group is brought in."""
        for group in self.of(denoiser):
            inner = [each for module in group.modules for each in module.modules()]
            if not any(each in modules for each in inner):
                continue
            names = ("modules", "parameters", "buffers")
            self._before.append((group, {name: getattr(group, name) for name in names}))
            whole = [each for each in inner if each._modules]  # theirs are streamed one by one
            group.modules = [each for each in inner if not each._modules and each not in modules]
            group.parameters = [*group.parameters, *_own(whole, "_parameters")]
            group.buffers = [*group.buffers, *_own(whole, "_buffers")]

    def restore(self) -> None:
        """Stream everything again. Idempotent."""
        while self._before:
            group, values = self._before.pop()
            for name, value in values.items():
                setattr(group, name, value)


def _own(modules: list[nn.Module], registry: str) -> list[Any]:
    return [each for module in modules for each in getattr(module, registry).values() if each is not None]
