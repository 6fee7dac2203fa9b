"""Flux and its relatives: double-stream blocks, then single-stream blocks; both carry text and image tokens."""

from __future__ import annotations

from typing import Any

import torch

from omnireuse.models.block_stack import TEXT_FIRST, Arguments, BlockStack, modulated, norm_output

__all__ = ["STACKS"]

_LISTS = ("transformer_blocks", "single_transformer_blocks")
_SINGLE = ("single_transformer_blocks",)
_ADAPTIVE = norm_output("hidden_states", emb="temb")


def _flux_2(block: Any, given: Arguments) -> torch.Tensor:
    # One modulation for all blocks; with cached reference tokens it has a row for each token.
    modulation: torch.Tensor = given["temb_mod_img"]
    if modulation.ndim == 2:
        modulation = modulation.unsqueeze(1)
    shift, scale = modulation.chunk(6, dim=-1)[:2]
    return modulated(block.norm1(given["hidden_states"]), scale, shift)


def _chroma(block: Any, given: Arguments) -> torch.Tensor:
    # Six rows of modulation for the image, then six for the text.
    return _ADAPTIVE(block, {**given, "temb": given["temb"][:, :6]})


STACKS = (
    BlockStack("FluxTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, signal=_ADAPTIVE),
    BlockStack("LongCatImageTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, signal=_ADAPTIVE),
    BlockStack("OvisImageTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, signal=_ADAPTIVE),
    BlockStack("BriaTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, signal=_ADAPTIVE),
    # Half of the text channels are exchanged between the blocks; no reused step reads them.
    BlockStack("BriaFiboTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, joined=_SINGLE, signal=_ADAPTIVE),
    BlockStack("Flux2Transformer2DModel", lists=_LISTS, streams=TEXT_FIRST, joined=_SINGLE, signal=_flux_2),
    BlockStack("ChromaTransformer2DModel", lists=_LISTS, streams=TEXT_FIRST, joined=_SINGLE, signal=_chroma),
)
