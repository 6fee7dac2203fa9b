"""What identifies the weights of one encoder between two looks, held without keeping any of them alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["ModuleState", "adapter_state"]

_NUM_SAMPLES = 64


class ModuleState:
    """The structure, weight versions, storages and sampled values of a module (or lone tensor) at one moment.

    Args:
        root: the encoder, or a tensor that the pipeline keeps beside its modules.
        on_gone: called (with a dead weak reference) when any submodule is freed: it was replaced or dropped.

    Cost: about 10 us for each tensor; 64 values of each go to the host, in one transfer per device.
    """

    def __init__(self, root: nn.Module | torch.Tensor, on_gone: Callable[[Any], None]) -> None:
        self._root = weakref.ref(root)
        modules = list(root.modules()) if isinstance(root, nn.Module) else []
        tensors = [*root.parameters(), *root.buffers()] if isinstance(root, nn.Module) else [root]
        self._submodules = [weakref.ref(m, on_gone) for m in modules]
        self._adapter_layers = [weakref.ref(m) for m in modules if _is_adapter_layer(m)]
        self._tensors = [weakref.ref(t) for t in tensors]
        self._counters = [_version_counter(t) for t in tensors]
        self._kinds = [(t.dtype, tuple(t.shape)) for t in tensors]
        self._addresses = [_address(t) for t in tensors]
        self._samples = _sample(tensors)
        self._versions = self.version_sum()
        last = len(tensors) - 1
        self._fixed = sorted({0, last // 2, last}) if tensors else []
        self.draws_in_training = any(_draws_in_training(m) for m in modules)

    def is_training(self) -> bool:
        """Whether the encoder is in training mode now."""
        root = self._root()
        return isinstance(root, nn.Module) and root.training

    def adapters(self) -> tuple[Any, ...]:
        """The state of every LoRA layer; empty without any."""
        return tuple([adapter_state(layer) for ref in self._adapter_layers if (layer := ref()) is not None])

    def version_sum(self) -> int:
        """Sum of all version counters: they only grow, so an equal sum means equal counters."""
        return sum([counter._version for counter in self._counters])

    def device(self) -> torch.device | None:
        """Where the first weight is now; None without weights."""
        first = self._tensors[0]() if self._tensors else None
        return None if first is None else first.device

    def storages_are_known(self, start: int, count: int) -> bool:
        """Whether a fixed few tensors, and ``count`` from ``start`` on in turn, still have dtype and storage."""
        total = len(self._tensors)
        for i in [*self._fixed, *[(start + k) % total for k in range(min(count, total))]]:
            tensor = self._tensors[i]()
            if tensor is None or tensor.dtype != self._kinds[i][0] or _address(tensor) != self._addresses[i]:
                return False
        return True

    def continues(self, old: ModuleState) -> bool:
        """Whether this later state has the same structure and weights as ``old``.

        The same tensors must be there, with the same versions, dtypes and sampled values. Another storage alone is
        a move to another device, or back: not a change.
        """
        return (
            _same(self._submodules, old._submodules)
            and _same(self._tensors, old._tensors)
            and self._versions == old._versions
            and self._kinds == old._kinds
            and torch.equal(self._samples, old._samples)
        )


def adapter_state(layer: Any) -> tuple[Any, ...]:
    """Names, scales, merges and the switch of one LoRA layer (PEFT's ``BaseTunerLayer``), hashable."""
    active = layer.active_adapters
    scaling = getattr(layer, "scaling", {})
    return (
        tuple(active) if isinstance(active, (list, tuple)) else active,
        tuple([(name, scaling[name]) for name in sorted(scaling)]),
        tuple(getattr(layer, "merged_adapters", ())),
        bool(getattr(layer, "disable_adapters", False)),
    )


def _same(new: list[weakref.ref[Any]], old: list[weakref.ref[Any]]) -> bool:
    return len(new) == len(old) and all(a() is b() is not None for a, b in zip(new, old, strict=True))


def _is_adapter_layer(module: nn.Module) -> bool:
    kind = type(module)
    return hasattr(kind, "active_adapters") and hasattr(kind, "disable_adapters") and hasattr(module, "scaling")


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter)


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if _is_plain(tensor) else 0


def _version_counter(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without data that shares the version counter of ``tensor`` and nothing else.

    ``detach`` shares the counter and the storage; giving it other data then lets go of the storage.
    """
    if tensor.is_inference() or not _is_plain(tensor):
        return torch.empty(0)  # no counter to share: such weights are seen by the audits only
    with torch.inference_mode(False):
        counter = tensor.detach()
        counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counter


def _sample(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Evenly spaced values of every tensor, as bytes on the CPU, in the order of ``tensors``."""
    chunks: dict[int, torch.Tensor] = {}
    by_device: dict[torch.device, list[int]] = {}
    with torch.inference_mode():
        for i, tensor in enumerate(tensors):
            if tensor.device.type == "meta" or tensor.numel() == 0 or tensor.is_quantized or not _is_plain(tensor):
                continue
            step = -(-tensor.numel() // _NUM_SAMPLES)
            chunks[i] = tensor.detach().reshape(-1)[::step].contiguous().view(torch.uint8)
            by_device.setdefault(tensor.device, []).append(i)
        for indices in by_device.values():
            joined = torch.cat([chunks[i] for i in indices]).cpu()
            sizes = [chunks[i].numel() for i in indices]
            chunks |= dict(zip(indices, joined.split(sizes), strict=True))
        return torch.cat([chunks[i] for i in sorted(chunks)]) if chunks else torch.empty(0, dtype=torch.uint8)


def _draws_in_training(module: nn.Module) -> bool:
    """Whether training mode makes this module's output random or dependent on the batch."""
    if isinstance(module, (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)):
        return getattr(module, "p", 1.0) > 0
    return any(
        isinstance(rate := getattr(module, name, None), float) and rate > 0
        for name in ("dropout", "attention_dropout", "dropout_rate", "dropout_p")
    )
