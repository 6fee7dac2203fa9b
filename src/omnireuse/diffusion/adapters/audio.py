"""Audio models."""

from __future__ import annotations

from omnireuse.diffusion.adapters.reading import normed
from omnireuse.diffusion.adapters.spec import BlockStack

__all__ = ["STABLE_AUDIO"]

# Time enters as the first token, not by modulation.
STABLE_AUDIO = BlockStack(
    model="StableAudioDiTModel",
    lists=("transformer_blocks",),
    signal=normed("norm1"),
    signal_name="normalised input of block 0",
)
