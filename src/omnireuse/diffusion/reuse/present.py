"""Summaries in words and as HTML for notebooks; strips that show which steps of a run were computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnireuse.diffusion.reuse.summary import Summary

__all__ = ["card", "counted", "share_of_steps", "step_strip", "summary_html", "summary_text"]

_COMPUTED, _FORECAST = "#0f9b87", "#8b93a1"
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
    "measuring": "while the pipeline was measured",
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
    return f"{summary.name}: " + "\n  ".join(_lines(summary))


def summary_html(summary: Summary, title: str = "") -> str:
    """The same for a notebook, with the steps of the latest run.

    Args:
        title: what the card is headed with; the strategy's name by default.
    """
    head, *lines = [
        f'<div style="margin-top:.2em">{escape(line[0].upper() + line[1:])}</div>' for line in _lines(summary)
    ]
    legend = (
        f'<div style="font-size:.9em">the steps of the latest run: <span style="color:{_COMPUTED}">■</span> computed '
        f'(fainter: for some of the branches), <span style="color:{_FORECAST}">■</span> forecast</div>'
    )
    strip = step_strip(summary.last_run)
    return card(title or summary.name, "".join((head, strip and strip + legend, *lines)))


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
        fill, opacity, what = _FORECAST, 0.1, "nothing decided"
    elif share == 0:
        fill, opacity, what = _FORECAST, 0.35, "forecast"
    else:
        fill, opacity, what = _COMPUTED, 0.25 + 0.75 * share, "computed" if share == 1 else f"{share:.0%} computed"
    return f'<i title="step {step}: {what}" style="flex:1;background:{fill};opacity:{opacity:.2f}"></i>'


def _lines(summary: Summary) -> Iterator[str]:
    """What was done, then what each figure means."""
    outside = counted(summary.calls_outside, "denoiser call")
    fallbacks = [
        f"fell back to {what} {counted(number, 'time')}; the log says why" for what, number in summary.fallbacks.items()
    ]
    if not summary.calls:
        yield "nothing was decided yet" + (f" ({outside} belonged to no run)" if summary.calls_outside else "")
        yield from fallbacks
        return
    yield f"{share_of_steps(summary)} in {counted(summary.runs, 'run')}{', on average' if summary.runs > 1 else ''}"
    for action in ("reused", "computed"):
        yield from _reasons(summary, action)
    yield (
        f"a decision and its forecast took {summary.host_seconds * 1e3:.3f} ms; values kept for forecasts took "
        f"{summary.kept_bytes / 2**20:.2f} MiB at most"
    )
    if summary.mean_error is not None:
        yield (
            "computed steps show how far forecasts for them would have been off: "
            f"{summary.mean_error:.1%} on average\n"
            "    (the computed values were used, so this is not the error of the result)"
        )
    if summary.calls_outside:
        yield f"{outside} belonged to no run and passed unchanged"
    yield from fallbacks
    if summary.audits:
        errors = [error for audit in summary.audits for error in audit.errors]
        broken = sum(audit.broken for audit in summary.audits)
        kept = f"; {counted(broken, 'picture')} beyond the tolerance" if broken else ""
        yield (
            f"{counted(len(errors), 'picture')} audited: {sum(errors) / len(errors):.2%} error of the final latents on "
            f"average, {max(errors):.2%} at most{kept}"
        )
    if summary.tuning is not None:
        yield str(summary.tuning)
    if summary.promise is not None:
        yield str(summary.promise)


def _reasons(summary: Summary, action: str) -> Iterator[str]:
    counts = {
        words.removeprefix(f"{action} (")[:-1]: number
        for words, number in sorted(summary.reasons.items(), key=lambda each: -each[1])
        if words.startswith(action)
    }
    parts = [f"{number:,} {_REASONS.get(reason, f'for {reason!r}')}" for reason, number in counts.items()]
    if len(parts) == 1:
        parts = [parts[0].split(" ", 1)[1]]
    if parts:
        yield f"{action} {counted(sum(counts.values()), 'time')}: {', '.join(parts)}"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
