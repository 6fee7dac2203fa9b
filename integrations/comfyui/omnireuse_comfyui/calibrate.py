"""The nodes that make a profile of a graph's own sampler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import comfy.model_management
import comfy.sample
import comfy.samplers
import comfy.utils
import folder_paths
import numpy as np
import torch

from omnireuse.engines.comfyui import Graph, calibrate_graph, profile_text, step_picture
from omnireuse.errors import ConfigError, UnknownNameError

from .shown import shown

CATEGORY = "model/omnireuse"
FOLDER = "omnireuse"
PROFILE = "OMNIREUSE_PROFILE"
"""Type of what *Omnireuse calibrate* returns: the path of a profile."""


class OmnireusePrompts:
    """One text for each line, so that a text encoder makes a conditioning of each."""

    CATEGORY = CATEGORY
    DESCRIPTION = "Gives the lines one after the other, so that a text encoder makes a conditioning of each."
    SEARCH_ALIASES: ClassVar = ["prompt list", "text lines"]
    FUNCTION = "lines"
    RETURN_TYPES = ("STRING",)
    RETURN_NAMES = ("texts",)
    OUTPUT_IS_LIST = (True,)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """The inputs."""
        options = {"multiline": True, "tooltip": "One prompt a line, like those that you generate with."}
        return {"required": {"prompts": ("STRING", options)}}

    def lines(self, prompts: str) -> tuple[list[str]]:
        """The lines that are not empty."""
        found = [line.strip() for line in prompts.splitlines() if line.strip()]
        if not found:
            raise ConfigError("Omnireuse prompts(prompts=''): prompts must hold a text, got none; write one in a line")
        return (found,)


class OmnireuseCalibrate:
    """Find the steps that are worth computing, on the graph's own runs."""

    CATEGORY = CATEGORY
    DESCRIPTION = (
        "Samples each prompt in full, finds which steps are worth computing, fits weights for the others, and judges "
        "them on every third prompt, which it has not seen. 24 prompts cost about 40 runs. Omnireuse profile uses it."
    )
    SEARCH_ALIASES: ClassVar = ["cache profile", "tune cache"]
    FUNCTION = "calibrate"
    INPUT_IS_LIST = True
    OUTPUT_NODE = True
    RETURN_TYPES = (PROFILE, "STRING", "IMAGE")
    RETURN_NAMES: ClassVar = ("profile", "text", "steps")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """The inputs: those of KSampler, with a VAE and a name."""
        whole = {"min": 1, "max": 10_000}
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "The model before any Omnireuse node."}),
                "positive": (
                    "CONDITIONING",
                    {"tooltip": "A list of at least 2 prompts; 14 for a promise, best 24. See Omnireuse prompts."},
                ),
                "negative": ("CONDITIONING", {"tooltip": "One for all prompts, or one for each."}),
                "latent_image": ("LATENT", {"tooltip": "One latent of the size that you generate."}),
                "vae": ("VAE", {"tooltip": "Quality is that of decoded pictures."}),
                "seed": (
                    "INT",
                    {
                        "default": 0,
                        "min": 0,
                        "max": 2**64 - 1,
                        # By its name alone, the frontend would draw another seed after each run.
                        "control_after_generate": False,
                        "tooltip": "Of the first prompt's noise; each further one adds 1.",
                    },
                ),
                "steps": ("INT", {"default": 28, **whole, "tooltip": "As in your sampler."}),
                "cfg": (
                    "FLOAT",
                    {"default": 8.0, "min": 0.0, "max": 100.0, "step": 0.1, "tooltip": "As in your sampler."},
                ),
                "sampler_name": (comfy.samplers.KSampler.SAMPLERS, {"tooltip": "As in your sampler."}),
                "scheduler": (comfy.samplers.KSampler.SCHEDULERS, {"tooltip": "As in your sampler."}),
                "denoise": (
                    "FLOAT",
                    {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.01, "tooltip": "As in your sampler."},
                ),
                "name": (
                    "STRING",
                    {"default": "profile", "tooltip": "Of the file in models/omnireuse, without its ending."},
                ),
            },
            "optional": {
                "sampler": ("SAMPLER", {"tooltip": "A custom sampler, instead of sampler_name."}),
                "sigmas": ("SIGMAS", {"tooltip": "Custom sigmas, instead of steps, scheduler and denoise."}),
            },
        }

    def calibrate(self, positive: list[Any], negative: list[Any], **lists: list[Any]) -> dict[str, Any]:
        """The profile's path, what it promises as text, and the steps of each plan as pictures."""
        given = {name: values[0] for name, values in lists.items()}
        path = _path(given["name"])
        profile = calibrate_graph(_graph(positive, negative, **given), path, _Bar(len(_sigmas(**given)) - 1))
        text = profile_text(profile)
        shares = [
            [float(step in plan.steps) for step in range(profile.num_inference_steps)]
            for _, plan in sorted(profile.plans.items(), reverse=True)
        ]
        steps = torch.cat([step_picture(each) for each in shares], dim=1)
        return {"ui": shown(text, steps), "result": (str(path), text, steps)}


class _Bar:
    """ComfyUI's progress bar, in steps of full runs. An interrupt ends what calls it."""

    def __init__(self, steps: int) -> None:
        self._steps, self._bar = steps, comfy.utils.ProgressBar(1)

    def __call__(self, done: float, total: float) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        self._bar.update_absolute(round(done * self._steps), max(round(total * self._steps), 1))


def _path(name: str) -> Path:
    if not name.strip() or Path(name).name != name or name.startswith("."):
        raise ConfigError(f"Omnireuse calibrate(name={name!r}): name must be a file name without folders, got {name!r}")
    return Path(folder_paths.get_folder_paths(FOLDER)[0]) / f"{name.removesuffix('.json')}.json"


def _sigmas(
    *, model: Any, steps: int, sampler_name: str, scheduler: str, denoise: float, sigmas: Any = None, **_: Any
) -> torch.Tensor:
    """The sigmas that the KSampler node takes, or those of the graph."""
    for what, value, known in (
        ("sampler", sampler_name, comfy.samplers.KSampler.SAMPLERS),
        ("scheduler", scheduler, comfy.samplers.KSampler.SCHEDULERS),
    ):
        # KSampler itself would take the first.
        if value not in known:
            raise UnknownNameError(what, value, known)
    if sigmas is not None:
        return sigmas
    chosen = {"steps": steps, "sampler": sampler_name, "scheduler": scheduler, "denoise": denoise}
    return comfy.samplers.KSampler(model, device="cpu", **chosen).sigmas


def _graph(positive: list[Any], negative: list[Any], **given: Any) -> Graph:
    latent, vae, cfg = given["latent_image"], given["vae"], given["cfg"]
    if "noise_mask" in latent:
        raise ConfigError(
            "Omnireuse calibrate(latent_image=a latent with a mask): latent_image must have none; calibrate "
            "without, and use the profile with it"
        )
    if latent["samples"].is_nested:
        raise ConfigError(
            "Omnireuse calibrate(latent_image=several kinds of latents): latent_image must hold one kind; use the "
            "Omnireuse node for this model"
        )
    start = comfy.sample.fix_empty_latent_channels(
        given["model"],
        latent["samples"],
        latent.get("downscale_ratio_spacial"),
        latent.get("downscale_ratio_temporal"),
    )
    sigmas = _sigmas(**given)
    sampler = given.get("sampler") or comfy.samplers.sampler_object(given["sampler_name"])

    def sample(model: Any, yes: Any, no: Any, seed: int) -> torch.Tensor:
        noise = comfy.sample.prepare_noise(start, seed, latent.get("batch_index"))
        return comfy.sample.sample_custom(
            model, noise, cfg, sampler, sigmas, yes, no, start, disable_pbar=True, seed=seed
        )

    return Graph(
        model=given["model"],
        positive=positive,
        negative=negative,
        sampler=sampler,
        sigmas=sigmas.tolist(),
        cfg=cfg,
        latent=start,
        seed=given["seed"],
        sample=sample,
        decode=_decoded(vae),
    )


def _decoded(vae: Any) -> Callable[[torch.Tensor], np.ndarray]:
    return lambda latents: vae.decode(latents)[0].float().clamp(0, 1).cpu().numpy()
