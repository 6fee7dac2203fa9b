"""The picture of a replay: hit ratio against capacity."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator, PercentFormatter

from omnireuse_engines.vllm.pictures import COLOURS, explain, quiet_axes
from omnireuse_engines.vllm.replay.run import BOUND, LRU, Score

__all__ = ["hit_ratio_figure"]


def hit_ratio_figure(title: str, scores: Sequence[Score], *, size: tuple[float, float] = (7.2, 4.4)) -> Figure:
    """One line a policy over capacity: ours, LRU dotted, and the bound above both."""
    figure = Figure(figsize=size, layout="constrained", facecolor=COLOURS["card"])
    axes = figure.add_subplot()
    explain(
        figure,
        "Each line is a policy: higher finds more of what is asked for in the cache, further right has more room; no "
        "policy can enter the shaded part.",
    )
    for policy in dict.fromkeys(score.policy for score in scores):
        own = [score for score in scores if score.policy == policy]
        x, y = [score.capacity for score in own], [score.hit_ratio for score in own]
        if policy == BOUND:
            axes.plot(x, y, color=COLOURS["full"], linewidth=1.2, marker="_", label=policy)
            axes.fill_between(x, y, 1.0, color=COLOURS["line"], alpha=0.5, linewidth=0)
        elif policy == LRU:
            axes.plot(x, y, color=COLOURS["ink"], linestyle=(0, (1, 3)), zorder=4, label=policy)
        else:
            axes.plot(x, y, color=COLOURS["first"], linewidth=1.8, marker="o", markersize=4, label=policy)
    axes.set_title(title, loc="left", fontsize=10.5, color=COLOURS["ink"])
    axes.set_xscale("log")
    capacities = sorted({score.capacity for score in scores})
    axes.set_xticks(capacities, [EngFormatter(places=0, sep="")(capacity) for capacity in capacities], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_xlabel("capacity, embeddings", color=COLOURS["muted"], fontsize=9.5)
    axes.set_ylabel("hit ratio", color=COLOURS["muted"], fontsize=9.5)
    quiet_axes(axes)
    axes.legend(frameon=False, fontsize=9.5, labelcolor=COLOURS["ink"], loc="best")
    return figure
