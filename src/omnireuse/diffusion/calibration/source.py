"""How workers get the pipeline of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omnireuse.diffusion.calibration.judge import Judge
from omnireuse.errors import ConfigError
from omnireuse.pipelines.source import Source

__all__ = ["check_portable", "make_judge"]


def check_portable(source: Source) -> None:
    """Refuse what other processes cannot load for themselves.

    Raises:
        ConfigError: a pipeline that is loaded already.
    """
    if source.is_loaded:
        raise ConfigError(
            f"calibrate(pipeline={type(source.given).__name__}): every worker loads a pipeline of its own; give the "
            "folder of the pipeline, its id on a hub, or a function without arguments that makes it"
        )


def make_judge(source: Source, prompts: Sequence[str], judging: Mapping[str, Any], gpu: bool) -> Judge:
    """The judge of a worker; one without a GPU computes in one thread, since its neighbours have the others."""
    if not gpu:
        torch.set_num_threads(1)
    return Judge(source.load(), prompts, **judging)
