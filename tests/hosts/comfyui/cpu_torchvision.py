"""The registry's torchvision is built for CUDA. Beside a CPU build of torch its operators do not load, and two of them
are registered unguarded (``torchvision/_meta_registrations.py``). They must be defined before it is imported."""

from __future__ import annotations

from functools import cache

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@cache
def define_operators() -> torch.library.Library:
    """The library that holds the definitions, which last as long as it does: as long as the process."""
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    return library
