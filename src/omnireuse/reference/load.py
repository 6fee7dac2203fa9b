"""Finds and loads the weights, which live in the repository and not in the wheel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnireuse.errors import ConfigError

if TYPE_CHECKING:
    from diffusers import FluxPipeline

#: Names a directory with the weights when no path is given.
PATH_VARIABLE = "OMNIREUSE_SHAPES_FLUX"

#: What the image pipeline is called with. Batches need one negative prompt for each prompt.
SAMPLING: dict[str, Any] = {
    "height": 64,
    "width": 64,
    "num_inference_steps": 28,
    "max_sequence_length": 20,
    "negative_prompt": "",
    "true_cfg_scale": 4.5,
}


def find_image_pipeline(path: str | Path | None = None) -> Path:
    """The directory of the weights: ``path``, else the environment's, else that of the checkout this file is part of.

    Raises:
        ConfigError: when the directory does not hold a pipeline.
    """
    if path is not None:
        origin, folder = "path", Path(path)
    elif os.environ.get(PATH_VARIABLE):
        origin, folder = PATH_VARIABLE, Path(os.environ[PATH_VARIABLE])
    else:
        origin, folder = "path", Path(__file__).resolve().parents[3] / "models" / "shapes-flux"
    if not (folder / "model_index.json").is_file():
        raise ConfigError(
            f"load_image_pipeline({origin}={str(folder)!r}): {origin} must be a directory with a model_index.json; "
            "the weights are in models/shapes-flux of the repository and not in the wheel: clone it, or point "
            f"{PATH_VARIABLE} at them"
        )
    return folder


def load_image_pipeline(path: str | Path | None = None, **kwargs: Any) -> FluxPipeline:
    """The reference image pipeline, in float32 unless told otherwise.

    Args:
        path: directory of the weights; see `find_image_pipeline` for the default.
        kwargs: passed on to ``FluxPipeline.from_pretrained``.

    Raises:
        ConfigError: when there are no weights.
    """
    from diffusers import FluxPipeline

    pipeline: FluxPipeline = FluxPipeline.from_pretrained(find_image_pipeline(path), **kwargs)
    return pipeline
