"""What a full call has kept, and what must be as it was for a lean call to use it."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from omnireuse.hooks.denoisers import adapter_scales
from omnireuse.hooks.timesteps import NAMES
from omnireuse.references.declared import Split

__all__ = ["Kept"]

_PLAIN = (numbers.Number, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Kept:
    """Keys and values of one full call.

    Args:
        split: its tokens.
        module: the denoiser.
        arguments: of the call, by name. All but the timestep and the target's rows must be the same, by their content,
            at the calls that use what is kept.
        keys, values: of each attention.

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
    ) -> None:
        self.split, self.keys, self.values = split, tuple(keys), tuple(values)
        self.lean_calls = 0
        self._conditions = [
            (name, value.clone() if isinstance(value, torch.Tensor) else value)
            for name, value in _conditions(split, module, arguments)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return sum(each.nbytes for each in (*self.keys, *self.values))

    def changed(self, module: torch.nn.Module, arguments: Mapping[str, Any]) -> str:
        """The name of what is not as it was at the full call; empty for nothing.

        Cost: a comparison of the references, the text and what else the call is given, which waits once for the device.
        """
        hidden = arguments.get("hidden_states")
        if not isinstance(hidden, torch.Tensor) or hidden.ndim != 3:
            return "hidden_states"
        if hidden.shape[1] != self.split.target + self.split.references:
            return "the number of tokens"
        now = list(_conditions(self.split, module, arguments))
        if len(now) != len(self._conditions):
            return "the arguments"
        names: list[str] = []
        differences: list[torch.Tensor] = []
        for (name, before), (other, value) in zip(self._conditions, now, strict=True):
            if name != other or not _are_comparable(before, value):
                return other
            if isinstance(value, torch.Tensor):
                names.append(name)
                differences.append((before != value).any())
        if differences:
            is_other = torch.stack([each.to(hidden.device) for each in differences]).tolist()
            return next((name for name, other in zip(names, is_other, strict=True) if other), "")
        return ""


def _conditions(split: Split, module: torch.nn.Module, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What keys of references depend on beside the timestep and the target, by name."""
    hidden = arguments["hidden_states"]
    yield "the references", hidden[:, split.target :]
    device = hidden.device.type
    yield "autocast", torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    scales = adapter_scales(module) if "peft_config" in vars(module) else None
    yield "the scales of adapters", repr(scales)
    for name in sorted(arguments):
        if name == "hidden_states" or name in NAMES:
            continue
        leaves, structure = pytree.tree_flatten(arguments[name])
        yield name, repr(structure)
        for leaf in leaves:
            yield name, leaf


def _are_comparable(before: Any, now: Any) -> bool:
    """True if they are equal, or tensors of the same shape, dtype and device."""
    if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
        return (before.shape, before.dtype, before.device) == (now.shape, now.dtype, now.device)
    return isinstance(now, _PLAIN) and type(before) is type(now) and bool(before == now)
