"""Flux and its kin: double-stream blocks, then single-stream blocks; both carry text and image tokens."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.diffusion.adapters.reading import adaptive_norm
from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = ["BRIA", "BRIA_FIBO", "CHROMA", "FLUX", "FLUX_2", "LONGCAT_IMAGE", "OVIS_IMAGE"]

_LISTS = ("transformer_blocks", "single_transformer_blocks")
_STREAMS = ("encoder_hidden_states", "hidden_states")

FLUX = BlockStack(model="FluxTransformer2DModel", lists=_LISTS, streams=_STREAMS, signal=adaptive_norm)
LONGCAT_IMAGE = BlockStack(model="LongCatImageTransformer2DModel", lists=_LISTS, streams=_STREAMS, signal=adaptive_norm)
OVIS_IMAGE = BlockStack(model="OvisImageTransformer2DModel", lists=_LISTS, streams=_STREAMS, signal=adaptive_norm)
BRIA = BlockStack(model="BriaTransformer2DModel", lists=_LISTS, streams=_STREAMS, signal=adaptive_norm)
# Between its blocks half of the text channels are exchanged; on reuse nobody reads them.
BRIA_FIBO = BlockStack(
    model="BriaFiboTransformer2DModel", lists=_LISTS, streams=_STREAMS, joined=_LISTS[1:], signal=adaptive_norm
)


def _flux_2_input(block: Any, arguments: Arguments) -> torch.Tensor:
    # One modulation for all blocks; with cached reference tokens it has a row for each token.
    modulation: torch.Tensor = arguments["temb_mod_img"]
    if modulation.ndim == 2:
        modulation = modulation.unsqueeze(1)
    shift, scale = modulation.chunk(6, dim=-1)[:2]
    modulated: torch.Tensor = (1 + scale) * block.norm1(arguments["hidden_states"]) + shift
    return modulated


FLUX_2 = BlockStack(
    model="Flux2Transformer2DModel", lists=_LISTS, streams=_STREAMS, joined=_LISTS[1:], signal=_flux_2_input
)


def _chroma_input(block: Any, arguments: Arguments) -> torch.Tensor:
    # Six rows of modulation for the image, then six for the text.
    modulated: torch.Tensor = block.norm1(arguments["hidden_states"], emb=arguments["temb"][:, :6])[0]
    return modulated


CHROMA = BlockStack(
    model="ChromaTransformer2DModel", lists=_LISTS, streams=_STREAMS, joined=_LISTS[1:], signal=_chroma_input
)
