"""Colours and words that the page and the pictures share."""

from __future__ import annotations

import math

from omnireuse.pipelines import IDENTICAL_DB

__all__ = ["DARK", "LIGHT", "decibels", "size"]

#: Colours by role. Texts have a contrast of at least 4.5 on paper and card.
LIGHT = {
    "paper": "#f7f6f2",
    "card": "#ffffff",
    "ink": "#1d2026",
    "muted": "#62676f",
    "line": "#e3e1da",
    "reused": "#e9e7e1",
    "full": "#4a4f59",
    "highlight": "#0c7c6c",
    "first": "#ad5713",
    "second": "#6d4fc2",
    "third": "#2b6cb8",
    "good": "#1a7a48",
    "bad": "#c0343a",
}
DARK = {
    "paper": "#111315",
    "card": "#1a1d20",
    "ink": "#eceae5",
    "muted": "#9ba1a9",
    "line": "#2c3035",
    "reused": "#2b2f34",
    "full": "#b3b8c0",
    "highlight": "#35c9b1",
    "first": "#f0a05a",
    "second": "#b29bf5",
    "third": "#74aef0",
    "good": "#4fd08b",
    "bad": "#f2777c",
}


def decibels(value: float | None, *, signed: bool = False) -> str:
    """A PSNR, or with `signed` a difference of two, for people."""
    if value is None or math.isnan(value):
        return "–"
    if value >= IDENTICAL_DB and not signed:
        return "identical"
    return f"{value:{'+' if signed else ''}.1f} dB".replace("-", "−")


def size(count: int) -> str:
    """Bytes, for people."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024.0:
            break
        value, unit = value / 1024.0, larger
    return f"{value:.3g} {unit}"
