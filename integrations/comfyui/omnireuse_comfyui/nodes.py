"""The nodes. Each turns its inputs into one call of `omnireuse_engines.comfyui`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import folder_paths
from comfy_execution.utils import get_executing_context

from omnireuse.errors import ConfigError
from omnireuse.tuning.loops import OFF
from omnireuse_engines.comfyui import MOST, Span, attach, plan_for, plan_of_profile, reuse_of, step_picture

from .shown import shown

CATEGORY = "model/omnireuse"
FOLDER = "omnireuse"
"""Of profiles, among ComfyUI's folders of models."""

folder_paths.add_model_folder_path(FOLDER, str(Path(folder_paths.models_dir) / FOLDER))
folder_paths.folder_names_and_paths[FOLDER][1].add(".json")

_MODEL = ("MODEL", {"tooltip": "Connect the last node that changes the model, such as a LoRA loader."})
_SPEEDUP = {"default": 0.0, "min": 0.0, "max": MOST, "step": 0.1}
_PERCENT = {"min": 0.0, "max": 1.0, "step": 0.01}
_ENABLED = ("BOOLEAN", {"default": True, "tooltip": "Off: every step is computed, as without this node."})
_SEARCHED = ["cache", "step cache", "teacache", "easycache", "lazycache", "speed up", "faster", "skip steps"]
"""Words that people search the nodes with."""


def _queue_item() -> str | None:
    """The item of the queue that is under way."""
    context = get_executing_context()
    return None if context is None else context.prompt_id


class Omnireuse:
    """Compute some of the steps, and forecast the others."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Computes some denoising steps and forecasts the others. With both numbers at 0, half of the steps are "
        "computed, but at least 12. The first 3 pictures are computed in full and measured, and the others follow the "
        "plan that suits them best."
    )
    SEARCH_ALIASES: ClassVar = _SEARCHED
    FUNCTION = "patch"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """The inputs."""
        return {
            "required": {
                "model": _MODEL,
                "speedup": (
                    "FLOAT",
                    {
                        **_SPEEDUP,
                        "tooltip": "All steps divided by computed steps: 2 computes half of them. 0 leaves it out. "
                        "Give speedup or tolerance, not both.",
                    },
                ),
                "tolerance": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        "min": 0.0,
                        "max": 0.99,
                        "step": 0.01,
                        "tooltip": "How far the final latents may be from those of the full run: 0.05 is 5 %. It "
                        "decides while the picture is made. 0 leaves it out. Give tolerance or speedup, not both.",
                    },
                ),
            },
            "optional": {
                "tune": (
                    "BOOLEAN",
                    {
                        "default": True,
                        "tooltip": "Compute the first 3 pictures in full and measure them, once for each model, "
                        "sampler, schedule, guidance and size. Off: reuse begins with the first picture.",
                    },
                ),
                "enabled": _ENABLED,
                "start_percent": (
                    "FLOAT",
                    {
                        "default": 0.0,
                        **_PERCENT,
                        "tooltip": "Share of the denoising after which reuse may begin, as in EasyCache. Steps before "
                        "it are computed, beside those that speedup asks for. Above 0 nothing is tuned.",
                    },
                ),
                "end_percent": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        **_PERCENT,
                        "tooltip": "Share of the denoising after which reuse ends, as in EasyCache. Steps after it "
                        "are computed. Below 1 nothing is tuned.",
                    },
                ),
            },
        }

    @classmethod
    def VALIDATE_INPUTS(cls, speedup: float | None) -> bool | str:
        """Whether the number can work, before anything of the graph runs; None for one that another node gives.

        ComfyUI reports an error of this function once for each of its arguments, whichever is wrong, and compares the
        other inputs with their least and most by itself. So `patch` refuses two targets, when the node runs.
        """
        try:
            plan_for(speedup=speedup or 0.0)
        except ConfigError as error:
            return str(error)
        return True

    def patch(
        self,
        model: Any,
        speedup: float,
        tolerance: float,
        tune: bool = True,
        enabled: bool = True,
        start_percent: float = 0.0,
        end_percent: float = 1.0,
    ) -> tuple[Any]:
        """The model that reuses steps."""
        plan, span = plan_for(speedup=speedup, tolerance=tolerance), Span(start=start_percent, end=end_percent)
        if not enabled:
            return (attach(model, OFF, item=_queue_item),)
        return (attach(model, plan, tune=tune, span=span, item=_queue_item),)


class OmnireuseProfile:
    """Compute the steps that a calibration has found."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Follows a profile that the command omnireuse calibrate has made with diffusers; nothing is promised of it."
    )
    SEARCH_ALIASES: ClassVar = _SEARCHED
    FUNCTION = "patch"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """The inputs."""
        return {
            "required": {
                "model": _MODEL,
                "profile": (
                    folder_paths.get_filename_list(FOLDER),
                    {"tooltip": "A file in models/omnireuse, which the command omnireuse calibrate has written."},
                ),
                "speedup": (
                    "FLOAT",
                    {**_SPEEDUP, "tooltip": "So many times fewer computed steps. 0 means 2."},
                ),
            },
            "optional": {
                "enabled": _ENABLED,
            },
        }

    def patch(self, model: Any, profile: str, speedup: float, enabled: bool = True) -> tuple[Any]:
        """The model that follows the profile."""
        if not enabled:
            return (attach(model, OFF, item=_queue_item),)
        path = folder_paths.get_full_path_or_raise(FOLDER, profile)
        return (attach(model, plan_of_profile(path, speedup=speedup), item=_queue_item),)


class OmnireuseSummary:
    """What reuse has done, after sampling."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Says how many steps were computed, and draws them. The latents pass through."
    SEARCH_ALIASES: ClassVar = ["cache report", "steps computed"]
    FUNCTION = "report"
    OUTPUT_NODE = True
    RETURN_TYPES = ("LATENT", "STRING", "IMAGE")
    RETURN_NAMES: ClassVar = ("latent", "text", "steps")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """The inputs."""
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "The model that the Omnireuse node returns."}),
                "latent": ("LATENT", {"tooltip": "What the sampler returns, so that this node runs after it."}),
            }
        }

    def report(self, model: Any, latent: Any) -> dict[str, Any]:
        """The summary as text and as a picture."""
        text, shares = reuse_of(model).report()
        picture = step_picture(shares)
        return {"ui": shown(text, picture), "result": (latent, text, picture)}


NODE_CLASS_MAPPINGS = {
    "Omnireuse": Omnireuse,
    "OmnireuseProfile": OmnireuseProfile,
    "OmnireuseSummary": OmnireuseSummary,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "Omnireuse": "Omnireuse",
    "OmnireuseProfile": "Omnireuse profile",
    "OmnireuseSummary": "Omnireuse summary",
}
