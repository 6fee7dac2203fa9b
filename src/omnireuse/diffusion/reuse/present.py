"""Summaries in words and as HTML for notebooks; strips that show which steps of a run were computed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnireuse.diffusion.reuse.summary import Summary

__all__ = ["card", "counted", "figures", "share_of_steps", "step_strip", "summary_html", "summary_text"]

_COMPUTED, _FORECAST = "#0f9b87", "#8b93a1"
_STRIP_WIDTH, _STRIP_HEIGHT, _MOST_RECTANGLES = 560, 14, 160
_REASONS = {
    "policy": "as the policy chose",
    "together": "as the first branch of the step did",
    "first": "at the first step",
    "last": "at the last step",
    "layout": "where the shape of the latents changed",
    "unprimed": "before there was enough to forecast from",
    "nonfinite": "where the measured change was not finite",
    "longest": "after as many reused steps as max_consecutive allows",
    "noiseless": "where no noise was left",
    "cache-dit": "as the cache-dit library chose",
}


def counted(number: int, noun: str) -> str:
    """The number with its noun, which takes an s unless it is one: "1 run", "2 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share_of_steps(summary: Summary) -> str:
    """What of a mean run was computed: "14 of 28 steps computed (2.00x fewer)"."""
    fewer = f"{summary.step_ratio:.2f}x fewer" if summary.reused_calls else "none reused"
    return f"{_short(summary.computed_steps)} of {_short(summary.steps / summary.runs)} steps computed ({fewer})"


def summary_text(summary: Summary) -> str:
    """A few lines for a person, each figure with what it means."""
    if not summary.calls:
        return f"{summary.name}: {_nothing_yet(summary)}"
    head = f"{summary.name}: {share_of_steps(summary)} in {counted(summary.runs, 'run')}"
    return "\n  ".join([head + (", on average" if summary.runs > 1 else ""), *_explained(summary)])


def summary_html(summary: Summary, title: str = "") -> str:
    """The same for a notebook, with the steps of the latest run.

    Args:
        title: what the card is headed with; the strategy's name by default.
    """
    title = title or summary.name
    if not summary.calls:
        return card(title, f"<div>{escape(_sentence(_nothing_yet(summary)))}</div>")
    numbers = [
        (f"{_short(summary.computed_steps)} of {_short(summary.steps / summary.runs)}", "steps computed a run"),
        (f"{summary.step_ratio:.2f}×" if summary.reused_calls else "none", "fewer steps computed"),
        (f"{summary.runs:,}", "run" if summary.runs == 1 else "runs"),
    ]
    strip = f"{step_strip(summary.last_run)}{_legend(summary.last_run)}"
    lines = "".join(f'<div style="margin-top:.2em">{escape(_sentence(line))}</div>' for line in _explained(summary))
    return card(title, figures(numbers) + strip + f'<div style="margin-top:.6em">{lines}</div>')


def card(title: str, body: str) -> str:
    """A block of HTML with a heading, in the colours of the notebook around it."""
    return (
        '<div style="font:13px/1.45 system-ui,sans-serif;max-width:660px;padding:.7em 1em;border-radius:8px;'
        f'border:1px solid rgba(128,128,128,.35)"><div style="font-weight:600">{escape(title)}</div>{body}</div>'
    )


def figures(numbers: Iterable[tuple[str, str]]) -> str:
    """Large numbers side by side, each over its words."""
    cells = "".join(
        '<div style="margin:0 2em .3em 0"><span style="font-size:1.5em;font-variant-numeric:tabular-nums">'
        f'{escape(number)}</span><br><span style="opacity:.75">{escape(words)}</span></div>'
        for number, words in numbers
    )
    return f'<div style="display:flex;flex-wrap:wrap;margin-top:.3em">{cells}</div>'


def step_strip(shares: Sequence[float | None], width: int = _STRIP_WIDTH) -> str:
    """A strip with a box for each step: filled where it was computed, grey where it was forecast.

    Args:
        shares: share of each step's decisions that computed, in [0, 1]; None for a step on which nothing was decided.
    """
    if not shares:
        return ""
    number = sum(1 for share in shares if share is not None and share > 0)
    step, gap = width / len(shares), min(2.0, 0.2 * width / len(shares))
    boxes = []
    first = 0
    for share, same in groupby(shares):
        many = len(list(same))
        single = 1 if len(shares) <= _MOST_RECTANGLES else many
        for index in range(first, first + many, single):
            boxes.append(_box(index * step, single * step - gap, share, index if single == 1 else None))
        first += many
    label = f"{number} of {counted(len(shares), 'step')} computed"
    return (
        f'<svg role="img" aria-label="{label}" width="{width}" height="{_STRIP_HEIGHT}" '
        f'viewBox="0 0 {width} {_STRIP_HEIGHT}" style="display:block;max-width:100%;margin-top:.3em">'
        f"{''.join(boxes)}</svg>"
    )


def _box(left: float, width: float, share: float | None, step: int | None) -> str:
    if share is None:
        fill, opacity, what = _FORECAST, 0.1, "nothing decided"
    elif share == 0:
        fill, opacity, what = _FORECAST, 0.35, "forecast"
    else:
        fill, opacity, what = _COMPUTED, 0.25 + 0.75 * share, "computed" if share == 1 else f"{share:.0%} computed"
    title = "" if step is None else f"<title>step {step}: {what}</title>"
    return (
        f'<rect x="{left:.2f}" width="{width:.2f}" height="{_STRIP_HEIGHT}" rx="1.5" fill="{fill}" '
        f'fill-opacity="{opacity:.2f}">{title}</rect>'
    )


def _legend(shares: Sequence[float | None]) -> str:
    partly = ", fainter: by some of its branches" if any(share and share < 1 for share in shares) else ""
    return (
        '<div style="font-size:.9em">the steps of the latest run, from left to right: '
        f'<span style="color:{_COMPUTED}">■</span> computed{partly}, '
        f'<span style="color:{_FORECAST}">■</span> forecast</div>'
    )


def _explained(summary: Summary) -> list[str]:
    """What the figures mean, a line each."""
    lines = [line for action in ("reused", "computed") if (line := _reasons(summary, action))]
    lines.append(
        f"a decision and its forecast took {summary.host_seconds * 1e3:.3f} ms; values kept for forecasts took "
        f"{summary.kept_bytes / 2**20:.2f} MiB at most"
    )
    if summary.mean_error is not None:
        lines.append(
            "computed steps show how far forecasts for them would have been off: "
            f"{summary.mean_error:.1%} on average\n"
            "    (the computed values were used, so this is not the error of the result)"
        )
    if summary.calls_outside:
        lines.append(f"{counted(summary.calls_outside, 'denoiser call')} belonged to no run and passed unchanged")
    if summary.promise is not None:
        lines.append(str(summary.promise))
        if not summary.promise_holds:
            steps = len(summary.promise.coordinates)
            lines.append(
                f"not promised here: runs differed from the profile's {steps} steps, and the plan was carried over by "
                "noise level"
            )
    return lines


def _reasons(summary: Summary, action: str) -> str:
    found = {}
    for words, number in summary.reasons.items():
        match = re.fullmatch(rf"{action} \((.+)\)", words)
        if match:
            found[_REASONS.get(match[1], f"for {match[1]!r}")] = number
    if not found:
        return ""
    total = sum(found.values())
    why = sorted(found.items(), key=lambda each: -each[1])
    parts = [f"{number:,} {reason}" if len(why) > 1 else reason for reason, number in why]
    return f"{action} {counted(total, 'time')}: {', '.join(parts)}"


def _nothing_yet(summary: Summary) -> str:
    outside = counted(summary.calls_outside, "denoiser call")
    return "nothing was decided yet" + (f" ({outside} belonged to no run)" if summary.calls_outside else "")


def _sentence(text: str) -> str:
    words = " ".join(text.split())
    return words[:1].upper() + words[1:] + "."


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
