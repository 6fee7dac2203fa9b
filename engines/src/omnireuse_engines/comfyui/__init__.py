"""omnireuse inside ComfyUI: the functions of its nodes. The nodes themselves lie in ``integrations/comfyui``.

Nothing here imports ComfyUI: a model comes in as an argument, with the wrappers that ComfyUI offers to custom nodes.
"""

from __future__ import annotations

from omnireuse_engines.comfyui.nodes import MOST, Span, plan_for, plan_of_profile, step_picture
from omnireuse_engines.comfyui.patch import Reuse, attach, reuse_of
from omnireuse_engines.comfyui.wrappers import check_comfyui

__all__ = [
    "MOST",
    "Reuse",
    "Span",
    "attach",
    "check_comfyui",
    "plan_for",
    "plan_of_profile",
    "reuse_of",
    "step_picture",
]
