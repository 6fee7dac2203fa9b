"""Operators of torchvision. The registry's is built for CUDA, so that they do not load beside a CPU build of torch, and
its import registers two of them: they must be defined before."""

from __future__ import annotations

import torch

__all__ = ["define_operators"]

_operators = torch.library.Library("torchvision", "FRAGMENT")  # the definitions end with the object


def define_operators() -> None:
    """Make torchvision importable in this process. Idempotent."""
    if not hasattr(torch.ops.torchvision, "nms"):
        for operator in ("nms", "qnms"):
            _operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
