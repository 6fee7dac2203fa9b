"""Where a search gets its pipeline from: as it is, from a folder, or from a function."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from omnireuse.errors import ConfigError
from omnireuse.search.judge import Judge

__all__ = ["check_portable", "load", "make_judge"]

logger = logging.getLogger("omnireuse")


def load(source: Any) -> Any:
    """The pipeline itself; that of a folder, on the GPU where there is one; or what a function makes.

    Raises:
        ConfigError: a folder without a pipeline.
    """
    if isinstance(source, (str, os.PathLike)):
        folder = Path(source)
        if not (folder / "model_index.json").is_file():
            raise ConfigError(
                f"calibrate({str(folder)!r}): must be the folder of a diffusers pipeline with a model_index.json"
            )
        from diffusers import DiffusionPipeline

        pipeline = DiffusionPipeline.from_pretrained(folder)
        if torch.cuda.is_available():
            logger.info("%s: moved to the GPU", folder)
            pipeline.to("cuda")
        pipeline.set_progress_bar_config(disable=True)
        return pipeline
    return source() if _is_function(source) else source


def check_portable(source: Any) -> None:
    """Refuse what other processes cannot load for themselves.

    Raises:
        ConfigError: a pipeline that is loaded already.
    """
    if not isinstance(source, (str, os.PathLike)) and not _is_function(source):
        raise ConfigError(
            f"calibrate(pipeline={type(source).__name__}): every worker loads a pipeline of its own; give the folder "
            "of the pipeline, or a function without arguments that makes it"
        )


def _is_function(source: Any) -> bool:
    # A pipeline can be called as well.
    return inspect.isroutine(source) or isinstance(source, functools.partial)


def make_judge(source: Any, prompts: Sequence[str], first_seed: int, call: Mapping[str, Any], gpu: bool) -> Judge:
    """The judge of a worker; one without a GPU computes in one thread, since its neighbours have the others."""
    if not gpu:
        torch.set_num_threads(1)
    return Judge(load(source), prompts, first_seed=first_seed, call=call)
