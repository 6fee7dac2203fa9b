"""Published coefficients and ratios for known checkpoints, with their sources. None of them was measured here."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["checkpoint_of", "choose_row", "published_rows"]

logger = logging.getLogger("omnireuse")


@cache
def published_rows(table: str) -> tuple[dict[str, Any], ...]:
    """The rows of a shipped table: "teacache_coefficients" or "magcache_ratios"."""
    text = resources.files("omnireuse.diffusion.cache").joinpath(f"data/{table}.json").read_text("utf-8")
    return tuple(json.loads(text)["rows"])


def checkpoint_of(pipeline: Any) -> str:
    """The name that the pipeline was loaded under; empty where it does not know."""
    return str(getattr(pipeline, "name_or_path", None) or getattr(pipeline, "_name_or_path", None) or "")


def choose_row(rows: Sequence[dict[str, Any]], checkpoint: str) -> dict[str, Any]:
    """The row of this checkpoint, told by the longest name contained in its path; else the first, and that is said."""
    path = _plain(checkpoint)
    named = [row for row in rows if _plain(row["checkpoint"].split(" (")[0]) in path]
    if named:
        return max(named, key=lambda row: len(row["checkpoint"].split(" (")[0]))
    row = rows[0]
    logger.info("taking the figures published for %s (%s)", row["checkpoint"], row["source"])
    return row


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
