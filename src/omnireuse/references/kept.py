"""What a full call has kept, and what must be as it was for a lean call to use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.hooks.clock import NAMES
from omnireuse.hooks.denoisers import adapter_scales
from omnireuse.references.declared import Split

__all__ = ["Kept"]


class Kept:
    """Keys and values of one full call.

    Args:
        split: its tokens.
        module: the denoiser.
        arguments: of the call, by name, with tensors and plain values alone. All but the timestep and the target's rows
            must have the same content at the calls that use what is kept.
        keys, values: of each attention.
        changed_at: the step at which a condition of the run changed last.

    Attributes:
        lean_calls: that have used it.
    """

    def __init__(
        self,
        split: Split,
        module: torch.nn.Module,
        arguments: Mapping[str, Any],
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        changed_at: int = 0,
    ) -> None:
        self.split, self.keys, self.values, self.changed_at = split, tuple(keys), tuple(values), changed_at
        self.lean_calls = 0
        leaves, self._form = _conditions(split, module, arguments)
        self._leaves = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return sum(each.nbytes for each in (*self.keys, *self.values))

    def serves(self, module: torch.nn.Module, arguments: Mapping[str, Any]) -> bool:
        """True if a call is given what the full call was given, but for the timestep and the target.

        Cost: a comparison of the references, the text and what else it is given, which waits once for the device.
        """
        hidden: torch.Tensor = arguments["hidden_states"]
        if hidden.shape[1] != self.split.target + self.split.references:
            return False
        leaves, form = _conditions(self.split, module, arguments)
        if form != self._form or not all(map(_are_comparable, self._leaves, leaves)):
            return False
        pairs = zip(self._leaves, leaves, strict=True)
        differ = [(a != b).any().to(hidden.device) for a, b in pairs if isinstance(a, torch.Tensor)]
        return not bool(torch.stack(differ).any())


def _conditions(split: Split, module: torch.nn.Module, arguments: Mapping[str, Any]) -> tuple[list[Any], object]:
    """What keys of references depend on beside the timestep and the target: values, and what is compared as it is."""
    hidden = arguments["hidden_states"]
    others = {name: value for name, value in sorted(arguments.items()) if name not in (*NAMES, "hidden_states")}
    leaves, structure = pytree.tree_flatten((hidden[:, split.target :], others))
    device = hidden.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return leaves, (structure, autocast, adapter_scales(module) if "peft_config" in vars(module) else None)


def _are_comparable(before: object, now: object) -> bool:
    """True if they are equal, or tensors of the same shape, dtype and device."""
    if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
        return (before.shape, before.dtype, before.device) == (now.shape, now.dtype, now.device)
    return type(before) is type(now) and bool(before == now)
