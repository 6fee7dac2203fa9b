"""Finds and loads the weights, which live in the repository and not in the wheel."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnireuse.errors import ConfigError

if TYPE_CHECKING:
    from diffusers import FluxKontextPipeline, FluxPipeline, StableDiffusionPipeline, WanPipeline

#: Each names a directory with the weights of its pipeline when no path is given.
PATH_VARIABLE, VIDEO_PATH_VARIABLE = "OMNIREUSE_SHAPES_FLUX", "OMNIREUSE_SHAPES_WAN"
UNET_PATH_VARIABLE, DISTILLED_PATH_VARIABLE = "OMNIREUSE_SHAPES_SD", "OMNIREUSE_SHAPES_DEV"
FACES_PATH_VARIABLE = "OMNIREUSE_FACES"
EDIT_PATH_VARIABLE, FEW_STEPS_EDIT_PATH_VARIABLE = "OMNIREUSE_FACES_EDIT", "OMNIREUSE_FACES_EDIT_8"

#: A file beside model_index.json: {part: folder of another model's part}, relative to the file. No part is kept twice,
#: and a clone has no links, which Windows would check out as text.
SHARED = "shared.json"

#: What the image pipeline is called with. Batches need one negative prompt for each prompt. The guidance is the weakest
#: that still lets a good cache be told from a bad one: half of the steps stay below 38 dB of all of them.
SAMPLING: dict[str, Any] = {
    "height": 64,
    "width": 64,
    "num_inference_steps": 28,
    "max_sequence_length": 20,
    "negative_prompt": "",
    "true_cfg_scale": 6.0,
}


#: What the video pipeline is called with. The guidance is chosen as that of the images is.
VIDEO_SAMPLING: dict[str, Any] = {
    "height": 64,
    "width": 64,
    "num_frames": 9,
    "num_inference_steps": 30,
    "max_sequence_length": 12,
    "negative_prompt": "",
    "guidance_scale": 6.0,
}

#: What the pipeline with a U-Net is called with.
UNET_SAMPLING: dict[str, Any] = {
    "height": 64,
    "width": 64,
    "num_inference_steps": 28,
    "negative_prompt": "",
    "guidance_scale": 4.0,
}

#: What the distilled pipeline is called with. Its transformer is told the guidance and is called once a step.
DISTILLED_SAMPLING: dict[str, Any] = {
    "height": 64,
    "width": 64,
    "num_inference_steps": 28,
    "max_sequence_length": 20,
    "guidance_scale": 6.0,
}

#: What the pipeline of faces is called with.
FACES_SAMPLING: dict[str, Any] = {
    "height": 64,
    "width": 64,
    "num_inference_steps": 28,
    "max_sequence_length": 26,
    "negative_prompt": "",
    "true_cfg_scale": 3.0,
}

#: What the pipeline that edits faces is called with. Without `_auto_resize` and `max_area` it would scale to 1024².
EDIT_SAMPLING: dict[str, Any] = {
    "height": 64,
    "width": 64,
    "max_area": 64 * 64,
    "_auto_resize": False,
    "num_inference_steps": 28,
    "max_sequence_length": 13,
}

#: What its distilled variant is called with.
FEW_STEPS_EDIT_SAMPLING: dict[str, Any] = {**EDIT_SAMPLING, "num_inference_steps": 8}


def _find(path: str | Path | None, *, loader: str, variable: str, name: str) -> Path:
    if path is not None:
        origin, folder = "path", Path(path)
    elif os.environ.get(variable):
        origin, folder = variable, Path(os.environ[variable])
    else:
        origin, folder = "path", Path(__file__).resolve().parents[1] / "models" / name
    if not (folder / "model_index.json").is_file():
        raise ConfigError(
            f"{loader}({origin}={str(folder)!r}): {origin} must be a directory with a model_index.json; the weights "
            f"are in models/{name} of the repository and not in the wheel: clone it, or point {variable} at them"
        )
    return folder


def _load(kind: Any, folder: Path, **kwargs: Any) -> Any:
    """``kind.from_pretrained`` of ``folder``, with the parts that the file `SHARED` names."""
    parts: dict[str, Any] = {}
    if (folder / SHARED).is_file():
        index, shared = (json.loads((folder / name).read_text("utf-8")) for name in ("model_index.json", SHARED))
        dtype = {name: kwargs[name] for name in ("dtype", "torch_dtype") if name in kwargs}
        for name, where in shared.items():
            library, part = index[name]
            given = {} if part.startswith("PreTrainedTokenizer") else dtype
            parts[name] = getattr(importlib.import_module(library), part).from_pretrained(folder / where, **given)
    return kind.from_pretrained(folder, **{**parts, **kwargs})


def find_image_pipeline(path: str | Path | None = None) -> Path:
    """The directory of the weights: ``path``, else the environment's, else that of the checkout this file is part of.

    Raises:
        ConfigError: when the directory does not hold a pipeline.
    """
    return _find(path, loader="load_image_pipeline", variable=PATH_VARIABLE, name="shapes-flux")


def find_video_pipeline(path: str | Path | None = None) -> Path:
    """As `find_image_pipeline`, for the clips."""
    return _find(path, loader="load_video_pipeline", variable=VIDEO_PATH_VARIABLE, name="shapes-wan")


def find_unet_pipeline(path: str | Path | None = None) -> Path:
    """As `find_image_pipeline`, for the pipeline with a U-Net."""
    return _find(path, loader="load_unet_pipeline", variable=UNET_PATH_VARIABLE, name="shapes-sd")


def find_distilled_pipeline(path: str | Path | None = None) -> Path:
    """As `find_image_pipeline`, for the distilled pipeline."""
    return _find(path, loader="load_distilled_pipeline", variable=DISTILLED_PATH_VARIABLE, name="shapes-dev")


def find_faces_pipeline(path: str | Path | None = None) -> Path:
    """As `find_image_pipeline`, for the faces."""
    return _find(path, loader="load_faces_pipeline", variable=FACES_PATH_VARIABLE, name="faces")


def find_edit_pipeline(path: str | Path | None = None) -> Path:
    """As `find_image_pipeline`, for the pipeline that edits faces."""
    return _find(path, loader="load_edit_pipeline", variable=EDIT_PATH_VARIABLE, name="faces-edit")


def find_few_steps_edit_pipeline(path: str | Path | None = None) -> Path:
    """As `find_image_pipeline`, for the pipeline that edits faces in eight steps."""
    variable = FEW_STEPS_EDIT_PATH_VARIABLE
    return _find(path, loader="load_few_steps_edit_pipeline", variable=variable, name="faces-edit-8")


def load_image_pipeline(path: str | Path | None = None, **kwargs: Any) -> FluxPipeline:
    """The reference image pipeline, in float32 unless told otherwise.

    Args:
        path: directory of the weights; see `find_image_pipeline` for the default.
        kwargs: passed on to ``FluxPipeline.from_pretrained``.

    Raises:
        ConfigError: when there are no weights.
    """
    from diffusers import FluxPipeline

    pipeline: FluxPipeline = _load(FluxPipeline, find_image_pipeline(path), **kwargs)
    return pipeline


def load_video_pipeline(path: str | Path | None = None, **kwargs: Any) -> WanPipeline:
    """The reference video pipeline, in float32 unless told otherwise.

    Args:
        path: directory of the weights; see `find_image_pipeline` for the default.
        kwargs: passed on to ``WanPipeline.from_pretrained``.

    Raises:
        ConfigError: when there are no weights.
    """
    from diffusers import WanPipeline

    pipeline: WanPipeline = _load(WanPipeline, find_video_pipeline(path), **kwargs)
    return pipeline


def load_unet_pipeline(path: str | Path | None = None, **kwargs: Any) -> StableDiffusionPipeline:
    """The reference pipeline with a U-Net that predicts noise, in float32 unless told otherwise.

    Args:
        path: directory of the weights; see `find_image_pipeline` for the default.
        kwargs: passed on to ``StableDiffusionPipeline.from_pretrained``.

    Raises:
        ConfigError: when there are no weights.
    """
    from diffusers import StableDiffusionPipeline

    # Without these two diffusers warns that the safety checker is off.
    options = {"safety_checker": None, "requires_safety_checker": False, **kwargs}
    pipeline: StableDiffusionPipeline = _load(StableDiffusionPipeline, find_unet_pipeline(path), **options)
    return pipeline


def load_distilled_pipeline(path: str | Path | None = None, **kwargs: Any) -> FluxPipeline:
    """The reference image pipeline with guidance distilled into its transformer, in float32 unless told otherwise.

    Args:
        path: directory of the weights; see `find_image_pipeline` for the default.
        kwargs: passed on to ``FluxPipeline.from_pretrained``.

    Raises:
        ConfigError: when there are no weights.
    """
    return load_image_pipeline(find_distilled_pipeline(path), **kwargs)


def load_faces_pipeline(path: str | Path | None = None, **kwargs: Any) -> FluxPipeline:
    """The reference pipeline that draws people, in float32 unless told otherwise.

    Args:
        path: directory of the weights; see `find_image_pipeline` for the default.
        kwargs: passed on to ``FluxPipeline.from_pretrained``.

    Raises:
        ConfigError: when there are no weights.
    """
    return load_image_pipeline(find_faces_pipeline(path), **kwargs)


def load_edit_pipeline(path: str | Path | None = None, **kwargs: Any) -> FluxKontextPipeline:
    """The reference pipeline that edits faces, in float32 unless told otherwise.

    Args:
        path: directory of the weights; see `find_edit_pipeline` for the default.
        kwargs: passed on to ``FluxKontextPipeline.from_pretrained``.

    Raises:
        ConfigError: when there are no weights.
    """
    from diffusers import FluxKontextPipeline

    pipeline: FluxKontextPipeline = _load(FluxKontextPipeline, find_edit_pipeline(path), **kwargs)
    return pipeline


def load_few_steps_edit_pipeline(path: str | Path | None = None, **kwargs: Any) -> FluxKontextPipeline:
    """As `load_edit_pipeline`, distilled to eight steps."""
    return load_edit_pipeline(find_few_steps_edit_pipeline(path), **kwargs)
