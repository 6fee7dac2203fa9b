"""A few values of tensors, which a change of weights hardly ever leaves alone."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

__all__ = ["Probe", "plain_tensors", "reference", "sampled"]

_SAMPLES = 64


def reference(value: object) -> Callable[[], Any]:
    """Gives a value back as long as it lives, and keeps it alive only if it cannot be referenced weakly."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """``tensor`` itself, or the plain ones in a wrapper subclass. Torch swaps the wrapper when its module moves."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
    else:
        for name in flatten()[0]:
            yield from plain_tensors(getattr(tensor, name))


def sampled(tensors: list[torch.Tensor]) -> bytes:
    """At most 64 evenly spaced values of every tensor, in the order of ``tensors``; none of those that are on the meta
    device or not strided."""
    pieces: dict[int, torch.Tensor] = {}
    with torch.inference_mode():
        for i, tensor in enumerate(tensors):
            if tensor.layout is torch.strided and tensor.numel() and tensor.device.type != "meta":
                values = tensor.int_repr() if tensor.is_quantized else tensor.detach()
                step = -(-tensor.numel() // _SAMPLES)
                pieces[i] = values.reshape(-1)[::step].contiguous().view(torch.uint8)
        for device in {piece.device for piece in pieces.values()}:  # one transfer each
            here = {i: piece for i, piece in pieces.items() if piece.device == device}
            joined = torch.cat(list(here.values())).cpu()
            pieces |= zip(here, joined.split([piece.numel() for piece in here.values()]), strict=True)
        return torch.cat([*pieces.values(), torch.empty(0, dtype=torch.uint8)]).numpy().tobytes()


class Probe:
    """The first value of each tensor, one of those that `sampled` reads: whoever replaces a model's weights changes
    some of them, whether torch counts it or not.

    Args:
        tensors: they are not kept.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._on_host: list[tuple[int, int]] = []
        self._elsewhere: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, tensor in enumerate(tensors):
            if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
                continue
            if tensor.is_cpu:
                self._on_host.append((tensor.data_ptr(), tensor.itemsize))
            elif not tensor.is_quantized:
                self._elsewhere.setdefault((tensor.device, tensor.dtype), []).append(place)
        self._first = self._read(tensors)

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the values are as they were, of the same tensors at the same addresses.

        Cost: about 0.5 us for each tensor of the host. One of another device is read there, and waited for once.
        """
        return self._read(tensors) == self._first

    def _read(self, tensors: Sequence[torch.Tensor]) -> list[bytes]:
        found = [ctypes.string_at(address, size) for address, size in self._on_host]
        with torch.inference_mode(), torch._C.DisableTorchFunctionSubclass():
            for places in self._elsewhere.values():
                values = torch.cat([tensors[place].as_strided((1,), (1,)) for place in places])
                found.append(values.view(torch.uint8).cpu().numpy().tobytes())
        return found
