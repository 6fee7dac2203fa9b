"""The timeline of a comparison: requests over engine steps, what was computed and what was not."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from omnireuse_engines.vllm.engine import Engine
from omnireuse_engines.vllm.pictures import COLOURS, explain, quiet_axes

__all__ = ["timeline_figure"]

_BARS = {"prefill": ("first", 0.74, 1.0), "decode": ("full", 0.26, 0.55)}
"""Kind -> colour, height and opacity of a step's bar."""
_SIGNS = {
    "encode": ("^", "second", -0.22),
    "load": ("v", "third", 0.0),
    "encoder hit": ("o", "good", 0.22),
    "preempt": ("x", "bad", 0.0),
}
"""Kind -> marker, colour and place within the step, so that two kinds in one step are both seen."""


def timeline_figure(off: Engine, on: Engine, *, row: float = 0.23) -> Figure:
    """One panel a run, one line a request, one column a step. A prefix hit is the length of prefill it saved.

    Args:
        row: inches a request.
    """
    requests = list(dict.fromkeys(mark.request_id for mark in off.marks))
    figure = Figure(figsize=(10.5, 2 * len(requests) * row + 2.2), layout="constrained", facecolor=COLOURS["card"])
    panels = figure.subplots(2, 1, sharex=True)
    for axes, name, run in zip(panels, ("caches off", "caches on"), (off, on), strict=True):
        _draw(axes, name, run, requests)
    panels[0].set_xlim(-0.8, max(off.num_steps, on.num_steps) + 0.5)
    panels[1].set_xlabel("engine step", color=COLOURS["muted"], fontsize=9.5)
    handles: list[Any] = [
        Patch(color=COLOURS[tone], alpha=opacity, label=kind) for kind, (tone, _, opacity) in _BARS.items()
    ]
    handles.append(Patch(facecolor="none", edgecolor=COLOURS["highlight"], label="prefill saved by a prefix hit"))
    handles += [
        Line2D([], [], linestyle="none", marker=sign, color=COLOURS[tone], markerfacecolor="none", label=kind)
        for kind, (sign, tone, _) in _SIGNS.items()
        if off.counts[kind] or on.counts[kind]
    ]
    explain(
        figure,
        "Each line is a request and each column a step of the engine: the upper panel computes everything, the lower "
        "one reuses; the stronger the colour of a prefill, the more tokens it computes.",
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.8)
    return figure


def _draw(axes: Any, name: str, run: Engine, requests: list[str]) -> None:
    line_of = {request: line for line, request in enumerate(requests)}
    most = max((count for _, _, kind, count in run.marks if kind == "prefill"), default=1)
    for step, request, kind, count in run.marks:
        line = line_of[request]
        if kind in _BARS:
            tone, height, opacity = _BARS[kind]
            strength = 0.35 + 0.65 * count / most if kind == "prefill" else 1.0
            axes.barh(
                line, 0.92, left=step - 0.46, height=height, color=COLOURS[tone], alpha=opacity * strength, linewidth=0
            )
        elif kind == "prefix hit":
            axes.barh(
                line, count / most, left=step - 0.5 - count / most, height=0.74,
                facecolor="none", edgecolor=COLOURS["highlight"], linewidth=1.1,
            )  # fmt: skip
        elif kind in _SIGNS:
            sign, tone, shift = _SIGNS[kind]
            axes.plot(
                [step + shift], [line], sign, color=COLOURS[tone], markersize=5.5, markeredgewidth=1.4,
                markerfacecolor=COLOURS["card"], zorder=4,
            )  # fmt: skip
    axes.set_yticks(range(len(requests)), requests)
    axes.set_ylim(len(requests) - 0.4, -0.6)
    quiet_axes(axes, grid="x", labels=8)
    counts = run.counts
    words = (
        f"{name}: {counts['encode']} encoder calls, {counts['prefill']:,} tokens prefilled, "
        f"{counts['preempt']} preemptions, {run.num_steps} steps"
    )
    axes.set_title(words, loc="left", fontsize=10.5, color=COLOURS["ink"])
