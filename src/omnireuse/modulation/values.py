"""Values of small tensors: known by their bits, or by being the very tensor whose value is known."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch

from omnireuse.modulation.weights import ALIGNED

__all__ = ["Known", "is_token_free", "settings"]

MAX_ROWS = 64
"""An input of more rows is taken for tokens. Nothing but speed depends on it."""


def is_token_free(value: object) -> TypeGuard[torch.Tensor]:
    """Whether this is a plain tensor with a batch and features, shape (B, D) or (B, 1, D)."""
    if type(value) is not torch.Tensor or not 2 <= value.ndim <= 3 or value.layout is not torch.strided:
        return False
    return 0 < value.shape[0] <= MAX_ROWS and (value.ndim == 2 or value.shape[1] == 1) and value.device.type != "meta"


def settings(device_type: str) -> tuple[Any, ...]:
    """The settings of torch that decide the bits of a product, beside its input and weights."""
    matmul, is_cast = torch.backends.cuda.matmul, torch.is_autocast_enabled(device_type)
    return (
        torch.get_autocast_dtype(device_type) if is_cast else None,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        torch.backends.mkldnn.enabled,
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )


class Known:
    """The values that are known in one denoiser call.

    Attributes:
        reads: how many tensors were read.
    """

    def __init__(self) -> None:
        self.reads = 0
        self._by_id: dict[int, tuple[torch.Tensor, int, Any]] = {}

    def of(self, tensor: torch.Tensor) -> Any:
        """The value of a tensor, hashable; equal ones have the same bits, shape, layout, dtype and device.

        Cost: a read of the tensor, one host synchronisation on an accelerator, unless it is known by its identity.
        """
        is_counted = not tensor.is_inference()
        known = self._by_id.get(id(tensor)) if is_counted else None
        if known is not None and known[0] is tensor and known[1] == tensor._version:
            return known[2]
        self.reads += 1
        octets = tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes()
        value = (*tensor.shape, tensor.stride(), tensor.data_ptr() % ALIGNED, tensor.dtype, tensor.device, octets)
        if is_counted:
            self.note(tensor, value)
        return value

    def note(self, tensor: torch.Tensor, value: object) -> None:
        """Remember the value of a tensor that has a version counter."""
        self._by_id[id(tensor)] = (tensor, tensor._version, value)  # held, so that no other has its id meanwhile
