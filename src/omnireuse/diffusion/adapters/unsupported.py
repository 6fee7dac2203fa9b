"""Denoisers whose blocks are no stack, and why: they are served in regions `step` and `call`."""

from __future__ import annotations

__all__ = ["UNSUPPORTED"]

_UNET = "its blocks change the resolution and are joined by skip connections, so its input and output differ in shape"
_DECODES = (
    "the last of its single blocks decode: they start again from the latents and read what the others made of them"
)
_TOKENS_FIRST = "its blocks take tokens first and the batch second, so the samples of a batch cannot be told apart"
_ALTERNATING = "its spatial and temporal blocks alternate and see the tokens in different orders"

UNSUPPORTED = {
    "DreamLiteUNetModel": _UNET,
    "ErnieImageTransformer2DModel": _TOKENS_FIRST,
    "I2VGenXLUNet": _UNET,
    "Kandinsky3UNet": _UNET,
    "LatteTransformer3DModel": _ALTERNATING,
    "MotifVideoTransformer3DModel": _DECODES,
    "StableCascadeUNet": _UNET,
    "UNet1DModel": _UNET,
    "UNet2DConditionModel": _UNET,
    "UNet2DModel": _UNET,
    "UNet3DConditionModel": _UNET,
    "UNetMotionModel": _UNET,
    "UNetSpatioTemporalConditionModel": _UNET,
}
"""Class name of a denoiser -> why region `blocks` cannot serve it."""
