"""One declaration a model family, found by the class name of the denoiser."""

from __future__ import annotations

from omnireuse.diffusion.adapters import audio, flux, image, qwen_image, video, wan
from omnireuse.diffusion.adapters.spec import BlockStack
from omnireuse.diffusion.adapters.unsupported import UNSUPPORTED
from omnireuse.errors import UnknownNameError, UnsupportedModelError
from omnireuse.registry import Registry

__all__ = ["BLOCK_STACKS", "UNSUPPORTED", "BlockStack", "block_stack_for"]

_DECLARED: list[BlockStack] = [
    getattr(module, name) for module in (flux, image, qwen_image, video, wan, audio) for name in module.__all__
]
BLOCK_STACKS: Registry[BlockStack] = Registry("omnireuse.adapters", {stack.model: stack for stack in _DECLARED})
"""Class name of a denoiser -> its declaration. Entry points `omnireuse.adapters` add to the package's own."""


def block_stack_for(model: str, region: str = "blocks") -> BlockStack:
    """The declaration for a denoiser's class name; the error says which regions need none.

    Args:
        model: the class name.
        region: "blocks" or "tail", whichever needs the declaration.

    Raises:
        UnsupportedModelError: a model whose blocks are no stack.
        UnknownNameError: a model that nobody declared.
    """
    if model in UNSUPPORTED:
        raise UnsupportedModelError(
            f"region {region!r} cannot serve {model}: {UNSUPPORTED[model]}; use region 'step' or 'call'"
        )
    if model not in BLOCK_STACKS:
        raise UnknownNameError(
            f"model for region {region!r}", model, BLOCK_STACKS, hint="regions 'step' and 'call' serve any denoiser"
        )
    return BLOCK_STACKS[model]
