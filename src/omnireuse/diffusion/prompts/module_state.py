"""What identifies the weights of one encoder between two looks, held without keeping any of them alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from omnireuse.diffusion.prompts.versions import VersionSeal, version_counter

__all__ = ["ModuleState", "adapter_state"]

_NUM_SAMPLES = 64


class ModuleState:
    """The structure, weight versions, storages and sampled values of a module (or lone tensor) at one moment.

    Weights of a wrapper subclass (as quantised ones) are known by the plain tensors inside.

    Args:
        root: the encoder, or a tensor that the pipeline keeps beside its modules.
        on_gone: called (with a dead weak reference) when a submodule or the storage of a weight is freed: it was
            replaced, moved or dropped.

    Cost: about 10 us for each tensor; 64 values of each go to the host, in one transfer per device.
    """

    def __init__(self, root: nn.Module | torch.Tensor, on_gone: Callable[[Any], None]) -> None:
        self._root = weakref.ref(root)
        modules = list(root.modules()) if isinstance(root, nn.Module) else []
        outer = [*root.parameters(), *root.buffers()] if isinstance(root, nn.Module) else [root]
        tensors = [inner for tensor in outer for inner in _plain_tensors(tensor)]
        self._submodules = [weakref.ref(m, on_gone) for m in modules]
        self._adapter_layers = [weakref.ref(m) for m in modules if _is_adapter_layer(m)]
        self.draws_in_training = any(_draws_in_training(m) for m in modules)
        self._kinds = [(t.dtype, tuple(t.shape)) for t in tensors]
        with torch._C.DisableTorchFunctionSubclass():
            counted = [t for t in tensors if not t.is_inference() and _storage(t) is not None]
            self.num_uncounted = len(tensors) - len(counted)
            self._seal = VersionSeal([version_counter(t) for t in counted])
            # The storage's Python object lives as long as the storage, so this tells of `tensor.data = other` at once.
            self._storages = [weakref.ref(s, on_gone) for t in tensors if (s := _storage(t)) is not None]
            self._samples = _sample(tensors)
        # Where modules are moved by swapping, torch refuses to swap what has weak references: a move is then a change.
        swaps = torch.__future__.get_swap_module_params_on_conversion()
        self._tensors = [] if swaps else [weakref.ref(t) for t in tensors]
        self._places = [] if swaps else [(weakref.ref(t), t.data_ptr()) for t in tensors if _storage(t) is not None]
        self._turn = 0

    def is_training(self) -> bool:
        """Whether the encoder is in training mode now."""
        root = self._root()
        return isinstance(root, nn.Module) and root.training

    def adapters(self) -> tuple[Any, ...]:
        """The state of every LoRA layer; empty without any."""
        return tuple([adapter_state(layer) for ref in self._adapter_layers if (layer := ref()) is not None])

    def was_written(self) -> bool:
        """Whether a weight was changed in place, as far as torch counts it."""
        return self._seal.is_broken()

    def device(self) -> torch.device | None:
        """Where the first weight is now; None without weights."""
        refs: Sequence[weakref.ref[Any]] = self._tensors or self._storages
        first = refs[0]() if refs else None
        return None if first is None else torch.device(first.device)

    def storages_are_known(self, count: int | None) -> bool:
        """Whether the first tensor and the next ``count`` in turn (None: all) still have their storage.

        It finds what the weak references cannot: another storage while somebody keeps the old one.
        """
        places = self._places
        if count is None or count >= len(places):
            looked_at = places
        else:
            start = self._turn
            self._turn = (start + count) % len(places)
            looked_at = [places[0], *places[start : start + count]]
        for ref, address in looked_at:
            tensor = ref()
            if tensor is None or tensor.data_ptr() != address:
                return False
        return True

    def continues(self, old: ModuleState) -> bool:
        """Whether this later state has the same structure and weights as ``old``.

        The same tensors must be there, with the same versions, dtypes and sampled values. Another storage alone is
        a move to another device, or back: not a change.
        """
        return (
            _same(self._submodules, old._submodules)
            and _same(self._tensors or self._storages, old._tensors or old._storages)
            and self._seal.sum == old._seal.sum
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


def _same(new: Sequence[weakref.ref[Any]], old: Sequence[weakref.ref[Any]]) -> bool:
    return len(new) == len(old) and all(a() is b() is not None for a, b in zip(new, old, strict=True))


def _is_adapter_layer(module: nn.Module) -> bool:
    kind = type(module)
    return hasattr(kind, "active_adapters") and hasattr(kind, "disable_adapters") and hasattr(module, "scaling")


def _plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """``tensor`` itself, or the plain ones inside a wrapper subclass.

    The wrapper must stay without weak references: torch swaps it when its module moves, and refuses to if it has any.
    """
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
    else:
        for name in flatten()[0]:
            yield from _plain_tensors(getattr(tensor, name))


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of ``tensor``; None for a layout without one (sparse, packed)."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:  # torch's word for such a layout; the weight is then among `num_uncounted`
        return None


def _sample(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Evenly spaced values of every tensor, as bytes on the CPU, in the order of ``tensors``."""
    chunks: dict[int, torch.Tensor] = {}
    by_device: dict[torch.device, list[int]] = {}
    with torch.inference_mode():
        for i, tensor in enumerate(tensors):
            if tensor.device.type == "meta" or tensor.numel() == 0 or tensor.is_quantized or _storage(tensor) is None:
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
