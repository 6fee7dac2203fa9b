"""Nodes for ComfyUI that reuse denoising steps."""

import comfyui_version
from comfy.patcher_extension import WrappersMP

from omnireuse.integrations.comfyui import check_comfyui

from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

check_comfyui(comfyui_version.__version__, [kind for kind in vars(WrappersMP).values() if isinstance(kind, str)])

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
