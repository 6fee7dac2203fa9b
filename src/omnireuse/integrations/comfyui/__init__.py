"""omnireuse inside ComfyUI: what its nodes call. The nodes themselves lie in ``integrations/comfyui``.

Nothing here imports ComfyUI: a model comes in as an argument, with the wrappers that ComfyUI offers to custom nodes.
"""

from __future__ import annotations

from omnireuse.integrations.comfyui.calibrate import calibrate_graph, profile_text
from omnireuse.integrations.comfyui.graph import Graph
from omnireuse.integrations.comfyui.patch import Reuse, attach, reuse_of
from omnireuse.integrations.comfyui.picture import step_picture
from omnireuse.integrations.comfyui.plans import plan_for, plan_of_profile
from omnireuse.integrations.comfyui.release import check_comfyui

__all__ = [
    "Graph",
    "Reuse",
    "attach",
    "calibrate_graph",
    "check_comfyui",
    "plan_for",
    "plan_of_profile",
    "profile_text",
    "reuse_of",
    "step_picture",
]
