"""The HTML of cards, and of strips that show which steps of a run were computed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from omnireuse.base.validation import counted
from omnireuse.summary.summary import Summary, summary_lines

__all__ = ["COMPUTED", "FORECAST", "card", "step_strip", "summary_html"]

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
    """A strip with a box for each step: filled where it was computed, grey where it was forecast.

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


def summary_html(summary: Summary, title: str = "") -> str:
    """A summary for a notebook, with the steps of the latest run.

    Args:
        title: what the card is headed with; the strategy's name by default.
    """
    head, *lines = [
        f'<div style="margin-top:.2em">{escape(line[0].upper() + line[1:])}</div>' for line in summary_lines(summary)
    ]
    legend = (
        f'<div style="font-size:.9em">the steps of the latest run: <span style="color:{COMPUTED}">■</span> computed '
        f'(fainter: for some of the branches), <span style="color:{FORECAST}">■</span> forecast</div>'
    )
    strip = step_strip(summary.last_run)
    return card(title or summary.name, "".join((head, *lines, strip and legend + strip)))
