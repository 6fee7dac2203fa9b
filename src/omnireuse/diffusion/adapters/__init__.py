"""One declaration a model family, found by the class name of the denoiser."""

from __future__ import annotations

from omnireuse.diffusion.adapters.flux import FLUX
from omnireuse.diffusion.adapters.qwen_image import QWEN_IMAGE
from omnireuse.diffusion.adapters.spec import BlockStack
from omnireuse.diffusion.adapters.wan import WAN
from omnireuse.errors import UnknownNameError

__all__ = ["BLOCK_STACKS", "BlockStack", "block_stack_for"]

BLOCK_STACKS: dict[str, BlockStack] = {stack.model: stack for stack in (FLUX, QWEN_IMAGE, WAN)}


def block_stack_for(model: str) -> BlockStack:
    """The declaration for a denoiser's class name; the error says which regions need none."""
    if model not in BLOCK_STACKS:
        raise UnknownNameError(
            "model for region 'blocks'", model, BLOCK_STACKS, hint="regions 'step' and 'call' serve any denoiser"
        )
    return BLOCK_STACKS[model]
