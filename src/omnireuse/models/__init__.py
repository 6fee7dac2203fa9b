"""One declaration for each model, found by the class name of the denoiser; and the models without one, with reasons."""

from __future__ import annotations

from omnireuse import messages
from omnireuse.base.registry import Registry
from omnireuse.base.validation import look_up
from omnireuse.errors import UnsupportedModelError
from omnireuse.hooks.regions.stack import BlockStack
from omnireuse.models.declarations import STACKS

__all__ = ["BLOCK_STACKS", "UNSUPPORTED", "BlockStack", "block_stack_for"]

BLOCK_STACKS: Registry[BlockStack] = Registry("omnireuse.adapters", {stack.model: stack for stack in STACKS})
"""Class name of a denoiser -> its declaration. Entry points `omnireuse.adapters` add to the package's own."""

_UNET = "its blocks change the resolution and are joined by skip connections, so its input and output differ in shape"
UNSUPPORTED = {
    "DreamLiteUNetModel": _UNET,
    "ErnieImageTransformer2DModel": (
        "its blocks take tokens first and the batch second, so the samples of a batch cannot be told apart"
    ),
    "I2VGenXLUNet": _UNET,
    "Kandinsky3UNet": _UNET,
    "LatteTransformer3DModel": "its spatial and temporal blocks alternate and see the tokens in different orders",
    "MotifVideoTransformer3DModel": (
        "the last of its single blocks decode: they start again from the latents and read the output of the others"
    ),
    "StableCascadeUNet": _UNET,
    "UNet1DModel": _UNET,
    "UNet2DConditionModel": _UNET,
    "UNet2DModel": _UNET,
    "UNet3DConditionModel": _UNET,
    "UNetMotionModel": _UNET,
    "UNetSpatioTemporalConditionModel": _UNET,
}
"""Class name of a denoiser whose blocks are no stack -> the reason. Regions `step` and `call` serve it."""


def block_stack_for(model: str, region: str = "blocks") -> BlockStack:
    """The declaration for a denoiser's class name.

    Args:
        model: the class name.
        region: the region that needs the declaration, for the message: "blocks" or "tail".

    Raises:
        UnsupportedModelError: a model whose blocks are no stack; the error gives the reason.
        UnknownNameError: a model without a declaration.
    """
    if model in UNSUPPORTED:
        raise UnsupportedModelError(messages.REGION_UNSUPPORTED, region=region, model=model, why=UNSUPPORTED[model])
    hint = "regions 'step' and 'call' serve any denoiser"
    return look_up(f"model for region {region!r}", model, BLOCK_STACKS, hint=hint)
