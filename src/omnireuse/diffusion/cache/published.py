"""Published coefficients and ratios of known checkpoints, with their sources. None of them was measured here."""

from __future__ import annotations

import json
import logging
from functools import cache
from importlib import resources
from typing import Any

from omnireuse.errors import UnknownNameError

__all__ = ["checkpoint_of", "published_row", "published_rows"]

logger = logging.getLogger("omnireuse")


@cache
def published_rows(table: str) -> tuple[dict[str, Any], ...]:
    """The rows of a shipped table: "teacache_coefficients" or "magcache_ratios"."""
    text = resources.files("omnireuse.diffusion.cache").joinpath(f"data/{table}.json").read_text("utf-8")
    return tuple(json.loads(text)["rows"])


def published_row(
    table: str, transformer_type: str, checkpoint: str, *, signal: str | None = None, calibrate: str
) -> dict[str, Any]:
    """The row of a checkpoint: that with the longest name in its path, else the first of its class, with a log line.

    Args:
        table: see `published_rows`.
        transformer_type: class name of the denoiser.
        checkpoint: name or path of the pipeline; empty where it is not known.
        signal: the signal that the row was fitted to; None for any.
        calibrate: how to calibrate, for the error.

    Raises:
        UnknownNameError: the table has no such row.
    """
    known = published_rows(table)
    rows = [
        row for row in known if row["transformer_class"] == transformer_type and signal in (None, row.get("signal"))
    ]
    if not rows:
        classes = {row["transformer_class"] for row in known}
        raise UnknownNameError(
            f"transformer type for {table.replace('_', ' ')}", transformer_type, classes, hint=calibrate
        )
    path = _plain(checkpoint)
    named = [row for row in rows if _plain(_name(row)) in path]
    if named:
        return max(named, key=lambda row: len(_name(row)))
    logger.info("taking the figures published for %s (%s)", rows[0]["checkpoint"], rows[0]["source"])
    return rows[0]


def checkpoint_of(pipeline: Any) -> str:
    """The name that the pipeline was loaded under; empty where it does not know."""
    return str(getattr(pipeline, "name_or_path", None) or getattr(pipeline, "_name_or_path", None) or "")


def _name(row: dict[str, Any]) -> str:
    name: str = row["checkpoint"].split(" (")[0]
    return name


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
