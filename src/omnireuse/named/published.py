"""Published coefficients and ratios of known checkpoints, with their sources. None of them was measured here."""

from __future__ import annotations

import json
import logging
import operator
from functools import cache
from importlib import resources
from typing import Any

from omnireuse.errors import NothingPublishedError
from omnireuse.models import BLOCK_STACKS

__all__ = ["checkpoint_of", "published_coefficients", "published_ratios", "published_rows"]

logger = logging.getLogger("omnireuse")


@cache
def published_rows(table: str) -> tuple[dict[str, Any], ...]:
    """The rows of a shipped table: "teacache_coefficients" or "magcache_ratios"."""
    text = resources.files("omnireuse.named").joinpath(f"data/{table}.json").read_text("utf-8")
    return tuple(json.loads(text)["rows"])


def published_coefficients(transformer_type: str, checkpoint: str = "") -> tuple[float, ...]:
    """Published TeaCache coefficients of a checkpoint of this class, for the signal that is watched here.

    Raises:
        UnknownNameError: none are published; the error lists the known types and says how to calibrate.
    """
    stack = BLOCK_STACKS.get(transformer_type)
    row = _row(
        "teacache_coefficients",
        transformer_type,
        checkpoint,
        signal=None if stack is None else stack.signal_name,
        calibrate="to calibrate: generate with enable(pipe, policy='never', region='blocks', signal='modulated_input') "
        "and pass fit_tea_cache(handle.events) as coefficients",
    )
    return tuple(row["coefficients"])


def published_ratios(transformer_type: str, checkpoint: str = "") -> tuple[tuple[float, ...], ...]:
    """Published MagCache ratios of a checkpoint of this class: for each branch one for each step, the first 1.0.

    Raises:
        UnknownNameError: none are published; the error lists the known types and says how to calibrate.
    """
    row = _row(
        "magcache_ratios",
        transformer_type,
        checkpoint,
        calibrate="to measure: MagCacheBackend(dict(mag_calibrate=True)).enable(pipe), generate, calibrated_ratios(); "
        "enable(pipe) needs no figures",
    )
    count = row["branches"]
    # The table leaves out the first step's 1.0 of each branch.
    return tuple((1.0, *row["ratios"][branch::count]) for branch in range(count))


def _row(
    table: str, transformer_type: str, checkpoint: str, *, signal: str | None = None, calibrate: str
) -> dict[str, Any]:
    """The row of a checkpoint: that with the longest name in its path, else the first of its class, with a log line.

    Args:
        table: see `published_rows`.
        transformer_type: class name of the denoiser.
        checkpoint: name or path of the pipeline; empty if it is not known.
        signal: the signal that the row was fitted to; None for any.
        calibrate: how to calibrate, for the error.

    Raises:
        NothingPublishedError: the table has no such row.
    """
    known = published_rows(table)
    rows = [
        row for row in known if row["transformer_class"] == transformer_type and signal in (None, row.get("signal"))
    ]
    if not rows:
        classes = {row["transformer_class"] for row in known}
        kind = f"transformer type for {table.replace('_', ' ')}"
        raise NothingPublishedError(kind, transformer_type, classes, hint=calibrate)
    names = [_plain(row["checkpoint"].split(" (")[0]) for row in rows]
    found = [(len(name), row) for name, row in zip(names, rows, strict=True) if name in _plain(checkpoint)]
    if found:
        return max(found, key=operator.itemgetter(0))[1]
    logger.info("taking the figures published for %s (%s)", rows[0]["checkpoint"], rows[0]["source"])
    return rows[0]


def checkpoint_of(pipeline: object) -> str:
    """The name that the pipeline was loaded under; empty if it does not know."""
    return str(getattr(pipeline, "name_or_path", None) or getattr(pipeline, "_name_or_path", None) or "")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
