"""Wan and its kin: one stream of video tokens; text enters by cross-attention and stays as it is."""

from __future__ import annotations

from typing import Any

from omnireuse.diffusion.adapters.reading import time_embedding
from omnireuse.diffusion.adapters.spec import Arguments, BlockStack

__all__ = ["CHRONO_EDIT", "SKYREELS_V2", "WAN", "WAN_ANIMATE", "WAN_VACE"]

_SIGNAL_NAME = "projected time embedding e0"

WAN = BlockStack(model="WanTransformer3DModel", lists=("blocks",), signal=time_embedding, signal_name=_SIGNAL_NAME)
CHRONO_EDIT = BlockStack(
    model="ChronoEditTransformer3DModel", lists=("blocks",), signal=time_embedding, signal_name=_SIGNAL_NAME
)
SKYREELS_V2 = BlockStack(
    model="SkyReelsV2Transformer3DModel", lists=("blocks",), signal=time_embedding, signal_name=_SIGNAL_NAME
)


def _face_after_the_last_block(denoiser: Any) -> str | None:
    if (len(denoiser.blocks) - 1) % denoiser.config.inject_face_latents_blocks == 0:
        return "the face is added after its last block, where it would be counted twice"
    return None


# Faces are added between blocks; on reuse nobody reads them there.
WAN_ANIMATE = BlockStack(
    model="WanAnimateTransformer3DModel",
    lists=("blocks",),
    signal=time_embedding,
    signal_name=_SIGNAL_NAME,
    refuses=_face_after_the_last_block,
)


def _control_as_it_came(arguments: Arguments) -> Any:
    # The hint that is added between the blocks, and the control tokens for the next control block.
    return arguments["control_hidden_states"], arguments["control_hidden_states"]


def _hint_after_the_last_block(denoiser: Any) -> str | None:
    if len(denoiser.blocks) - 1 in denoiser.config.vace_layers:
        return "a control hint is added after its last block, so the control blocks cannot be skipped with the stack"
    return None


# The control blocks run first and only feed the blocks, so they are skipped with them.
WAN_VACE = BlockStack(
    model="WanVACETransformer3DModel",
    lists=("vace_blocks", "blocks"),
    signal=time_embedding,
    signal_name=_SIGNAL_NAME,
    bypass={"vace_blocks": _control_as_it_came},
    refuses=_hint_after_the_last_block,
)
