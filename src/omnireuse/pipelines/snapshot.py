"""The watched parts of a pipeline at one moment, without keeping any of them alive; and what tells of a change."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as registration
from torch.optim.optimizer import register_optimizer_step_post_hook

from omnireuse.fingerprints.tensors import Probe, plain_tensors, reference, sampled

__all__ = ["Snapshot", "autocast_state", "is_adapter", "when_suspected"]

# These are process-wide: they say that some module gained a part, or that some optimizer stepped. A fused step changes
# weights without a new tensor version (torch 2.13).
_REGISTER: tuple[Callable[[Any], Any], ...] = (
    registration.register_module_module_registration_hook,
    registration.register_module_parameter_registration_hook,
    registration.register_module_buffer_registration_hook,
    register_optimizer_step_post_hook,
)
_SLICED = (nn.ModuleList, nn.Sequential)
_AUTOCAST = ("cpu", "cuda", "mps", "xpu")


def when_suspected(suspect: Callable[..., None]) -> Callable[[], None]:
    """Call `suspect(module, …)` whenever a module of this process gains a part, and with an optimizer that has stepped,
    until the returned function is called."""
    handles = [register(suspect) for register in _REGISTER]

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


def autocast_state() -> tuple[tuple[str, str], ...]:
    """The kinds of devices on which this thread computes under autocast, each with its dtype."""
    on = [kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)]
    return tuple([(kind, str(torch.get_autocast_dtype(kind)).removeprefix("torch.")) for kind in on])


class Snapshot:
    """Identity, version counters, storages and sampled values of all parts.

    Weights of a wrapper subclass, such as quantised ones, are known by the plain tensors inside. The modules in a list,
    a dict or the attributes of another object count as well.

    Args:
        parts: the watched attributes by name.
        suspect: called when a submodule or a storage is freed: it was replaced, moved or dropped.

    Cost: about 10 us for each tensor, and one transfer to the host for each device.
    """

    def __init__(self, parts: Mapping[str, object], suspect: Callable[..., None]) -> None:
        owners = [owner for part in parts.values() for owner in _owners(part)]
        roots = [owner for owner in owners if isinstance(owner, nn.Module)]
        modules = [module for root in roots for module in root.modules()]
        weights = [weight for root in roots for weight in (*root.parameters(), *root.buffers())]
        weights += [owner for owner in owners if isinstance(owner, torch.Tensor)]
        self._names, self._parts = list(parts), [reference(part) for part in parts.values()]
        self._modules = [weakref.ref(module, suspect) for module in modules]
        self._identities = frozenset(map(id, modules))
        self._adapters = [weakref.ref(module) for module in modules if is_adapter(module)]
        with torch._C.DisableTorchFunctionSubclass():
            tensors = [tensor for weight in weights for tensor in plain_tensors(weight)]
            stored = [(tensor, storage) for tensor in tensors if (storage := _storage(tensor)) is not None]
            counted = [tensor for tensor, _ in stored if not tensor.is_inference()]
            with torch.inference_mode(False):
                self._counters = [_counter(tensor) for tensor in counted]
            self._sum = self._sum_of_versions()
            # The Python object of a storage lives as long as the storage, so this tells of `tensor.data = other`.
            self._storages = [weakref.ref(storage, suspect) for _, storage in stored]
            self._content = [(tensor.dtype, tensor.shape) for tensor in tensors], sampled(tensors)
            # If modules are moved by swapping, torch refuses to swap a tensor that has weak references.
            swaps = torch.__future__.get_swap_module_params_on_conversion()
            self._tensors: list[Any] = self._storages if swaps else [weakref.ref(tensor) for tensor in tensors]
            self._places = [] if swaps else [(weakref.ref(tensor), tensor.data_ptr()) for tensor, _ in stored]
            self._probe = Probe([] if swaps else [tensor for tensor, _ in stored])

    def has_parts_of(self, pipeline: object) -> bool:
        """Whether the attributes of ``pipeline`` are the same objects."""
        pairs = zip(self._names, self._parts, strict=True)
        return all([part() is getattr(pipeline, name, None) for name, part in pairs])  # noqa: C419  # half the time

    def is_touched_by(self, event: Sequence[object]) -> bool:
        """Whether an event of `suspect` may change a part. A slice of a `ModuleList`, as many models take one in each
        call, is a new list that gains parts, and changes none."""
        return not (event and type(event[0]) in _SLICED and id(event[0]) not in self._identities)

    def has_weights(self) -> bool:
        """Whether no version counter moved, every tensor has its storage still, and its first value: a write into
        `tensor.data` moves no counter. Cost: about 1 us for each tensor, and as `Probe`."""
        if self._sum_of_versions() != self._sum:
            return False
        tensors = []
        for find, address in self._places:
            tensor = find()
            if tensor is None or tensor.data_ptr() != address:
                return False
            tensors.append(tensor)
        return self._probe.holds(tensors)

    def continues(self, old: Snapshot) -> bool:
        """Whether nothing changed since ``old``. Another storage alone is a move between devices: not a change."""
        return (
            self._names == old._names
            and _same(self._parts, old._parts)
            and _same(self._modules, old._modules)
            and _same(self._tensors, old._tensors)
            and self._sum == old._sum
            and self._content == old._content
        )

    def adapters(self) -> tuple[Any, ...]:
        """Names, scales, merges and the switch of every LoRA layer (PEFT's ``BaseTunerLayer``)."""
        layers: list[Any] = [layer for find in self._adapters if (layer := find()) is not None]
        return tuple(
            [
                (*layer.active_adapters, *sorted(layer.scaling.items()), *layer.merged_adapters, layer.disable_adapters)
                for layer in layers
            ]
        )

    def _sum_of_versions(self) -> int:
        """Counters only grow: equal sums are equal counters."""
        return sum([counter._version for counter in self._counters])


def _counter(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without data that shares the version counter: ``detach`` shares it, and the storage is let go of."""
    counter = tensor.detach()
    counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counter


def _owners(part: object) -> list[Any]:
    """The modules and the lone tensor of one part."""
    if isinstance(part, (nn.Module, torch.Tensor)):
        return [part]
    inside = part.values() if isinstance(part, dict) else getattr(part, "__dict__", {}).values()
    return [value for value in (part if isinstance(part, (list, tuple)) else inside) if isinstance(value, nn.Module)]


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except NotImplementedError:  # a sparse or packed layout has none
        return None


def is_adapter(module: nn.Module) -> bool:
    """Whether it is a layer with adapters (PEFT's ``BaseTunerLayer``)."""
    kind = type(module)
    return hasattr(kind, "active_adapters") and hasattr(kind, "disable_adapters") and hasattr(module, "scaling")


def _same(new: list[Any], old: list[Any]) -> bool:
    """Whether two lists refer to the same living objects."""
    return len(new) == len(old) and all(a() is b() is not None for a, b in zip(new, old, strict=True))
