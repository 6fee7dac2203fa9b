"""The HTML of cards, and of strips that show which steps of a run were computed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from omnireuse.base.validation import counted

__all__ = ["COMPUTED", "FORECAST", "card", "step_strip"]

COMPUTED = "#0f9b87"
"""Colour of computed steps."""
FORECAST = "#8b93a1"
"""Colour of forecast steps."""


def card(title: str, body: str) -> str:
    """A block of HTML with a heading, in the colours of the notebook around it."""
    return (
        '<div style="font:13px/1.45 system-ui,sans-serif;max-width:660px;padding:.7em 1em;border-radius:8px;'
        f'border:1px solid rgba(128,128,128,.35)"><div style="font-weight:600">{escape(title)}</div>{body}</div>'
    )


def step_strip(shares: Sequence[float | None]) -> str:
    """A strip with a box for each step: filled if it was computed, grey if it was forecast.

    Args:
        shares: share of each step's decisions that computed, in [0, 1]; None for a step on which nothing was decided.
    """
    if not shares:
        return ""
    boxes = "".join(_box(step, share) for step, share in enumerate(shares))
    label = f"{sum(bool(share) for share in shares)} of {counted(len(shares), 'step')} computed"
    style = "display:flex;gap:1px;height:14px;min-width:180px;margin-top:.3em"
    return f'<div role="img" aria-label="{label}" style="{style}">{boxes}</div>'


def _box(step: int, share: float | None) -> str:
    if share is None:
        fill, opacity, what = FORECAST, 0.1, "nothing decided"
    elif share == 0:
        fill, opacity, what = FORECAST, 0.35, "forecast"
    else:
        fill, opacity, what = COMPUTED, 0.25 + 0.75 * share, "computed" if share == 1 else f"{share:.0%} computed"
    return f'<i title="step {step}: {what}" style="flex:1;background:{fill};opacity:{opacity:.2f}"></i>'
