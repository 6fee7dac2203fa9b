"""The options that say which pipeline a command loads, where it computes, and how its results are read."""

from __future__ import annotations

from typing import Annotated

import typer

from omnireuse.errors import ConfigError

__all__ = ["Device", "Dtype", "Model", "Pictures", "Pipeline", "the_source"]

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Folder of a diffusers pipeline, or its id on the Hugging Face Hub.", show_default=False
    ),
]
Pipeline = Annotated[
    str | None,
    typer.Option(metavar="PACKAGE:FUNCTION", help="Function without arguments that makes any other pipeline."),
]
Device = Annotated[
    str | None, typer.Option(help="Device, as torch names it (default: cuda or mps where there is one, else cpu).")
]
Dtype = Annotated[
    str | None,
    typer.Option(help="bfloat16, float16 or float32 (default: bfloat16 on cuda and mps, else float32)."),
]
Pictures = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE:FUNCTION",
        help="Function from the result of the pipeline to arrays (height, width, channels) in 0 to 1, one per prompt.",
    ),
]


def the_source(command: str, model: str | None, pipeline: str | None, *, unless: str = "") -> str:
    """What the pipeline is loaded from: the one of both that was given.

    Args:
        command: for the error.
        model, pipeline: as they were given.
        unless: when neither need be given, for the error.

    Raises:
        ConfigError: neither or both of them, or a function that is not named package:function.
    """
    if (model is None) == (pipeline is None):
        how = f"must be given{unless}" if model is None else "cannot both be given"
        raise ConfigError(
            f"{command}: MODEL, a folder or an id, {'or' if model is None else 'and'} --pipeline {how}; see omnireuse "
            f"{command} --help"
        )
    if pipeline is not None and ":" not in pipeline:
        raise ConfigError(
            f"{command}(--pipeline {pipeline!r}): must be PACKAGE:FUNCTION, such as my_package.models:load"
        )
    found = model or pipeline
    assert found is not None
    return found
