"""The regions between the blocks of a denoiser, which need to know the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from omnireuse.hooks.denoisers import is_compiled_whole, model_name, unwrapped, wrapped_modules
from omnireuse.hooks.regions.blocks import BlocksRegion
from omnireuse.hooks.regions.tail import TailRegion
from omnireuse.hooks.run import Region
from omnireuse.loop.strategy import Strategy
from omnireuse.models import block_stack_for
from omnireuse.models.extractors import ExtractedRegion, has_extractor

__all__ = ["region_inside"]

logger = logging.getLogger("omnireuse")


def region_inside(strategy: Strategy, denoisers: Sequence[torch.nn.Module], owner: object) -> Region:
    """Region "blocks" or "tail". In "blocks" registered extractors come before declarations.

    Raises:
        UnknownNameError: a model without a declaration.
        UnsupportedModelError: a model whose blocks are no stack.
    """
    models = [unwrapped(denoiser) for denoiser in denoisers]
    names = [model_name(model) for model in models]
    if strategy.region == "blocks" and all(map(has_extractor, names)):
        return ExtractedRegion(strategy, denoisers)
    compiled = [denoiser for denoiser in denoisers if is_compiled_whole(denoiser)]
    for denoiser in compiled:
        logger.warning(
            "%s is compiled whole, and region %r works between its blocks: while reuse is enabled it runs without "
            "torch.compile; compile its blocks instead (compile_repeated_blocks)",
            type(unwrapped(denoiser)).__name__,
            strategy.region,
        )
    stacks = [(model, block_stack_for(name, strategy.region)) for model, name in zip(models, names, strict=True)]
    kind = TailRegion if strategy.region == "tail" else BlocksRegion
    return kind(strategy, stacks, owner, [module for each in compiled for module in wrapped_modules(each)])
