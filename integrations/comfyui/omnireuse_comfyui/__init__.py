"""Nodes for ComfyUI that reuse denoising steps."""

from pathlib import Path

import comfyui_version
from comfy.patcher_extension import WrappersMP

from omnireuse_engines.comfyui import check_comfyui

from .nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

check_comfyui(comfyui_version.__version__, [kind for kind in vars(WrappersMP).values() if isinstance(kind, str)])

WEB_DIRECTORY = str(Path(__file__).parent / "web")
"""Scripts that ComfyUI's frontend loads."""

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS", "WEB_DIRECTORY"]
