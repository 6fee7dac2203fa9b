"""Checksums of content: equal in every process that has loaded the same weights, on any device."""

from __future__ import annotations

import torch

__all__ = ["tensor_checksum"]

_CHUNK = 1 << 20
_CPU_BLOCK = 1 << 16  # stays in a core's cache
_PRIME = 1_099_511_628_211  # the 64-bit FNV prime; any odd number would do


def tensor_checksum(tensor: torch.Tensor) -> tuple[int, int]:
    """Two 64-bit sums over the bytes: one plain, one weighted by place, so that swapped values show.

    Integer sums wrap and do not depend on their order, so every device gives the same. Not meant against an adversary.
    """
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return (0, 0)
    with torch.inference_mode():
        octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if octets.numel() % 8:
            octets = torch.nn.functional.pad(octets, (0, -octets.numel() % 8))
        words = octets.view(torch.int64)
        weights = torch.arange(1, 2 * min(_CHUNK, words.numel()), 2, device=words.device)
        plain = torch.zeros((), dtype=torch.int64, device=words.device)
        placed = torch.zeros((), dtype=torch.int64, device=words.device)
        block = _CPU_BLOCK if words.device.type == "cpu" else _CHUNK  # the sums are the same
        for chunk in words.split(_CHUNK):
            plain += chunk.sum()
            placed *= _PRIME
            for part, weight in zip(chunk.split(block), weights.split(block), strict=False):
                placed += (part * weight[: part.numel()]).sum()
        first, second = torch.stack((plain, placed)).tolist()
    return first, second
