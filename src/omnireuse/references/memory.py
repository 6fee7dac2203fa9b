"""Memory that keys and values of references may take."""

from __future__ import annotations

import os

import torch

__all__ = ["free_bytes", "kept_bytes"]


def free_bytes(device: torch.device) -> int | None:
    """Bytes that are free on a device, with those that torch holds and does not use; None where nobody tells."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "cpu" and "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def kept_bytes(attentions: int, width: int, tokens: int, *, batch: int = 1, dtype: torch.dtype = torch.bfloat16) -> int:
    """Bytes that are kept for each guidance branch: a key and a value for each token in each attention.

    Args:
        attentions: of the model (`Declaration.attentions`).
        width: heads times channels of one.
        tokens: of all references.
    """
    return 2 * attentions * width * tokens * batch * dtype.itemsize
