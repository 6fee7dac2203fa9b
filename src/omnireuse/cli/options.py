"""Options that several commands take, and how their values are read."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from omnireuse import messages
from omnireuse.base.terminal import be_quiet, be_verbose
from omnireuse.errors import ConfigError

__all__ = [
    "Call",
    "Device",
    "Dtype",
    "Model",
    "Pictures",
    "Pipeline",
    "Quiet",
    "Verbose",
    "names",
    "pipeline_source",
    "read_prompts",
    "whole_numbers",
]


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"must be JSON, got {text!r}: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"must be a JSON object, got {text!r}")
    return value


def names(text: str) -> tuple[str, ...]:
    """Names with commas between."""
    return tuple(text.split(","))


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"must be whole numbers with commas between, got {text!r}") from None


# Every command takes these two, before its name or after it.
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show only results and errors.", callback=lambda asked: asked and be_quiet()),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Show more of what happens.", callback=lambda asked: asked and be_verbose()),
]
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
    str | None, typer.Option(help="Device, as torch names it (default: cuda or mps if there is one, else cpu).")
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
Call = Annotated[
    Any,
    typer.Option(
        parser=json_object, metavar="JSON", help="""Further arguments of the pipeline, as '{"height": 512}'."""
    ),
]


def pipeline_source(command: str, model: str | None, pipeline: str | None) -> str:
    """MODEL or --pipeline, whichever was given."""
    if (model is None) == (pipeline is None):
        raise ConfigError(messages.MODEL_MISSING if model is None else messages.MODEL_TWICE, command=command)
    if pipeline is not None and ":" not in pipeline:
        raise ConfigError(messages.PIPELINE_FUNCTION, command=command, pipeline=pipeline)
    return model or str(pipeline)


def read_prompts(path: Path, option: str) -> list[str]:
    """The prompts of a file: its lines that are not blank, or the column "prompt" or "prompts" of a CSV file.

    Args:
        option: what the path was given to, for errors, such as "compare(--prompts".
    """
    where = f"{option} {str(path)!r})"
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot be read ({error})") from error
    if path.suffix == ".csv":
        rows = csv.DictReader(lines)
        column = next((name for name in rows.fieldnames or () if name.lower() in ("prompt", "prompts")), None)
        if column is None:
            raise ConfigError(f"{where}: must have a column named prompt or prompts, got {rows.fieldnames}")
        lines = [row[column] or "" for row in rows]
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise ConfigError(f"{where}: must hold one prompt a line, got none")
    return prompts
