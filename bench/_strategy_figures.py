"""Tables and pictures of `bench strategies`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console
from rich.table import Table

from bench._choices import FORECASTERS, STRATEGIES
from bench._conclusion import GAIN_UNGUIDED, LOSS_GUIDED, MOST_COMPUTED, conclusions, grouped
from reference.figures import explain

mpl.use("Agg")
from matplotlib import pyplot as plt

FULL, BASELINE = "full run", "fewer steps"
_COLOURS = dict(zip(FORECASTERS, ("C7", "black", "C3", "C1", "C4"), strict=True))
_KEYS = ("case", "steps", "guided")


def show(record: dict[str, Any], console: Console) -> None:
    """Quality, wall-clock and conclusions."""
    for rows in grouped(record["quality"], *_KEYS):
        table = _table(
            f"{_words(rows[0])}: computed steps / PSNR in dB / SSIM / attributes right in %, from careful to bold",
            "strategy", "forecaster", "",
        )  # fmt: skip
        for line in grouped(rows, "strategy", "forecaster"):
            points = sorted(line, key=lambda row: -row["computed"])
            table.add_row(line[0]["strategy"], line[0]["forecaster"], "   ".join(map(_point, points)))
        console.print(table)
    for rows in grouped(record["wall_clock"], *_KEYS):
        headings = ("steps / computed", "full / own time", "lowest–highest", "host ms a decision", "KiB kept at most")
        table = _table(f"{_words(rows[0])}: wall-clock, one prompt at a time", "strategy", "forecaster", *headings)
        for row in rows:
            table.add_row(
                row["strategy"], row["forecaster"], f"{row['steps'] / row['computed']:.2f}",
                f"{statistics.median(row['ratios']):.2f}", f"{min(row['ratios']):.2f}–{max(row['ratios']):.2f}",
                f"{row['host_ms']:.3f}", f"{row['kept_bytes'] / 1024:.0f}" if row["kept_bytes"] else "not told",
            )  # fmt: skip
        console.print(table)
    show_conclusions(record, console)


def show_conclusions(record: dict[str, Any], console: Console) -> None:
    """Where a fitted forecast does what is expected of it, and where not."""
    found = conclusions(record["quality"])
    table = _table(
        "forecast against the same policy holding, at equal computed steps, in dB; "
        f"expected: ≥ {GAIN_UNGUIDED:g} unguided, ≥ −{LOSS_GUIDED:g} guided, everywhere",
        "run", "strategy", "forecaster", "computed", "mean (10–90 %)", "lowest", "as expected",
    )  # fmt: skip
    for entry in found:
        margin = entry["margin"]
        if margin is None:
            cells = ("no common range", "", "", "")
        else:
            cells = (
                f"{margin['from']:.1f}–{margin['to']:.1f}",
                f"{margin['mean']:+.1f} ({margin['low']:+.1f}–{margin['high']:+.1f})",
                f"{margin['lowest']:+.1f}",
                "never" if margin["least_from"] is None else f"from {margin['least_from']:.1f} on",
            )
        table.add_row(_words(entry), entry["strategy"], entry["forecaster"], *cells)
    console.print(table)
    judged = [entry for entry in found if entry["holds"] is not None]
    for each in grouped(judged, "forecaster", "guided"):
        held, guidance = sum(entry["holds"] for entry in each), "guided" if each[0]["guided"] else "unguided"
        console.print(f"{each[0]['forecaster']}, {guidance}: as expected in {held} of {len(each)}")


def _point(row: dict[str, Any]) -> str:
    psnr, ssim = statistics.fmean(row["psnr"]), statistics.fmean(row["ssim"])
    return f"{row['computed']:4.1f} / {psnr:4.1f} / {ssim:.3f} / {row['attributes'] * 100:.0f}"


def _words(row: dict[str, Any]) -> str:
    return f"{row['case']}, {row['steps']} steps, {'guided' if row['guided'] else 'unguided'}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, box=None, title_justify="left")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def draw(record: dict[str, Any], path: Callable[[int], Path]) -> list[Path]:
    """A picture a step count: a column of panels a case and guidance, a panel a strategy, a line a forecaster.

    Settings that compute nearly all steps are left out, as in the conclusions.
    """
    drawn = []
    shown = [row for row in record["quality"] if row["computed"] <= MOST_COMPUTED * row["steps"]]
    for rows in grouped(shown, "steps"):
        known = {row["strategy"] for row in rows} - {BASELINE}
        names, groups = [name for name in STRATEGIES if name in known], grouped(rows, "case", "guided")
        shape = (max(len(names), 1), len(groups))
        size = (2.8 * shape[1] + 0.5, 1.9 * shape[0] + 0.8)
        figure, axes = plt.subplots(
            *shape, figsize=size, squeeze=False, sharex=True, sharey="col", layout="constrained"
        )
        for panels, group in zip(axes.T, groups, strict=True):
            panels[0].set_title(f"{group[0]['case']}, {'guided' if group[0]['guided'] else 'unguided'}")
            panels[-1].set_xlabel("computed steps")
            for panel, name in zip(panels, names, strict=False):
                for line in grouped([row for row in group if row["strategy"] in (name, BASELINE)], "forecaster"):
                    _draw_line(panel, line)
                panel.grid(alpha=0.3)
        for panel, name in zip(axes[:, 0], names, strict=False):
            panel.set_ylabel(f"{name}\nPSNR in dB")
        handles: dict[str, Any] = {}
        for panel in axes.flat:
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        explain(
            figure,
            "Each panel is a strategy in one case, each line a forecaster over its settings: further left computes "
            "less, higher is closer to the full run; a line above the dashed one is worth more than plain fewer steps.",
        )
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
        drawn.append(path(rows[0]["steps"]))
        figure.savefig(drawn[-1], dpi=80)
        plt.close(figure)
    return drawn


def _draw_line(panel: Any, line: list[dict[str, Any]]) -> None:
    points = sorted(line, key=lambda row: row["computed"])
    label = BASELINE if points[0]["strategy"] == BASELINE else points[0]["forecaster"]
    panel.plot(
        [row["computed"] for row in points],
        [statistics.fmean(row["psnr"]) for row in points],
        color=_COLOURS.get(label, "C5"),
        linestyle={BASELINE: "--", "hold on output": ":"}.get(label, "-"),
        marker=".",
        linewidth=1.2,
        label=label,
    )
