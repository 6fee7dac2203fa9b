"""The content of tensors in two numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["checksums"]

_CHUNK = 1 << 20
_CPU_BLOCK = 1 << 16  # stays in a core's cache
_PRIME = 1_099_511_628_211  # the 64-bit FNV prime; any odd number would do


def checksums(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Of each tensor two 64-bit sums over its bytes: one plain, one weighted by place, so that swapped values show.

    Integer sums wrap and do not depend on their order, so every device and process gives the same. They are not meant
    against an adversary.

    Cost: two reads of each tensor, and one host synchronisation for each device.
    """
    with torch.inference_mode():
        sums = [_sums(tensor) for tensor in tensors]
        found: dict[int, tuple[int, int]] = {}
        for device in {each.device for each in sums}:
            places = [place for place, each in enumerate(sums) if each.device == device]
            read = torch.stack([sums[place] for place in places]).tolist()
            found |= zip(places, map(tuple, read), strict=True)
    return [found[place] for place in range(len(sums))]


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_meta or tensor.numel() == 0:
        return torch.zeros(2, dtype=torch.int64)
    octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if octets.numel() % 8 or octets.storage_offset() % 8 or octets.data_ptr() % 8:
        octets = torch.nn.functional.pad(octets, (0, -octets.numel() % 8)).clone()
    words = octets.view(torch.int64)
    weights = torch.arange(1, 2 * min(_CHUNK, words.numel()), 2, device=words.device)
    plain, placed = torch.zeros(2, dtype=torch.int64, device=words.device)
    block = _CPU_BLOCK if words.device.type == "cpu" else _CHUNK  # the sums are the same
    for chunk in words.split(_CHUNK):
        plain += chunk.sum()
        placed *= _PRIME
        for part, weight in zip(chunk.split(block), weights.split(block), strict=False):
            placed += (part * weight[: part.numel()]).sum()
    return torch.stack((plain, placed))
