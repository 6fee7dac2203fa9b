"""The region of a strategy on a pipeline's denoisers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omnireuse.hooks.regions.call import CallRegion
from omnireuse.hooks.regions.step import StepRegion
from omnireuse.hooks.run import Region
from omnireuse.loop.strategy import Strategy

__all__ = ["make_region"]


def make_region(strategy: Strategy, denoisers: Sequence[torch.nn.Module], owner: object) -> Region:
    """The strategy's region on these denoisers.

    Raises:
        UnknownNameError: region "blocks" or "tail" on a model without a declaration.
        UnsupportedModelError: the same on a model whose blocks are no stack.
    """
    if strategy.region == "step":
        return StepRegion(strategy)
    if strategy.region == "call":
        return CallRegion(strategy)
    from omnireuse.models.inside import region_inside  # these alone need declarations of models

    return region_inside(strategy, denoisers, owner)
