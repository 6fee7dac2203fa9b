"""The region of a strategy on a pipeline's denoisers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from omnireuse.hooks.denoisers import is_compiled_whole, model_name, unwrapped, wrapped_modules
from omnireuse.hooks.live import StepRegion
from omnireuse.hooks.regions.call import CallRegion
from omnireuse.hooks.regions.cuts import Cuts
from omnireuse.hooks.regions.rows import ENTRIES, Dimension
from omnireuse.hooks.run import Region
from omnireuse.loop.strategy import Strategy

__all__ = ["DIMENSIONS", "make_region"]

logger = logging.getLogger("omnireuse")

_IDS: Mapping[str, Dimension] = {"img_ids": None, "txt_ids": None}
_ROTARY: Mapping[str, Dimension] = {"image_rotary_emb": None}

DIMENSIONS: Mapping[str, Mapping[str, Dimension]] = {
    # Positions, one row a token, for all samples.
    "BriaFiboTransformer2DModel": _IDS,
    "BriaTransformer2DModel": _IDS,
    "ChromaTransformer2DModel": _IDS,
    "FluxTransformer2DModel": _IDS,
    "LongCatImageTransformer2DModel": _IDS,
    "OvisImageTransformer2DModel": _IDS,
    "AllegroTransformer3DModel": _ROTARY,
    "CogVideoXTransformer3DModel": _ROTARY,
    "CogView4Transformer2DModel": _ROTARY,
    "ConsisIDTransformer3DModel": _ROTARY,
    "GlmImageTransformer2DModel": _ROTARY,
    "HunyuanDiT2DModel": _ROTARY,
    "LuminaNextDiT2DModel": _ROTARY,
    "StableAudioDiTModel": {"rotary_embedding": None},
    "Kandinsky5Transformer3DModel": {"visual_rope_pos": None, "text_rope_pos": None},
    # (layers, batch, tokens, channels)
    "HiDreamImageTransformer2DModel": {"encoder_hidden_states_llama3": 1},
    # (batch · frames, tokens, channels)
    "UNetMotionModel": {"encoder_hidden_states": 0},
    # Lists, whose tensors may begin with an axis as long as the batch.
    "ZImageTransformer2DModel": {"x": ENTRIES, "cap_feats": ENTRIES},
}
"""Class name of a denoiser -> argument -> the dimension of its rows, or None if all rows share it."""


def make_region(strategy: Strategy, denoisers: Sequence[torch.nn.Module], owner: object) -> Region:
    """The strategy's region on these denoisers. In "blocks" registered extractors come before declarations.

    Raises:
        UnknownNameError: region "blocks" or "tail" on a model without a declaration.
        UnsupportedModelError: the same on a model whose blocks are no stack.
    """
    if strategy.region == "step":
        return StepRegion(Cuts(DIMENSIONS))
    if strategy.region == "call":
        return CallRegion(strategy, Cuts(DIMENSIONS))
    # Only the regions between blocks need the declarations of models.
    from omnireuse.hooks.regions.blocks import BlocksRegion
    from omnireuse.hooks.regions.tail import TailRegion
    from omnireuse.models import block_stack_for
    from omnireuse.models.extractors import ExtractedRegion, has_extractor

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
