"""What the benchmark of references shows: a table, and the plot of the docs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from bench._common import Row, new_table
from reference.drawing import Array
from reference.edits.evaluate import Examples
from reference.figures import BASELINES, MARKERS, OURS, PEERS, explain, quiet_axes, save_figure

__all__ = ["draw", "draw_edits", "show"]

KLEIN = (1.40, 1.77, 1.99, 2.22)
"""FLUX.2 klein 9B-KV, as published."""
MODEL = "faces-edit"
NARROW = 5.2
"""Inches of a figure."""


def ratio(row: Row) -> float:
    """A full call's time over a lean one's."""
    seconds = row["seconds"]
    return statistics.median(seconds["full"] or seconds["keeping"]) / statistics.median(seconds["lean"])


def show(rows: Sequence[Row], console: Console) -> None:
    """Calls, and what lean calls change."""
    table = new_table("a full call's time over a lean one's", "model, device", "1", "2", "3", "4")
    calls = [row for row in rows if row["part"] == "call" and row["references"] and not row["on_host"]]
    for key in dict.fromkeys((row["model"], row["device"], row["size"]) for row in calls):
        own = {r["references"]: f"{ratio(r):.2f}" for r in calls if (r["model"], r["device"], r["size"]) == key}
        table.add_row(f"{key[0]}, {key[1]}, {key[2]}", *(own.get(count, "–") for count in range(1, 5)))
    console.print(table)
    table = new_table("PSNR to the full run in dB", "way", "tokens", "mean", "5 %", "worst")
    for row in rows:
        if row["part"] == "quality" and row["way"] != "full":
            each, name = row["each"], f"{row['model']}, {row['references']}: {row['way']}"
            figures = (np.mean(each), np.quantile(each, 0.05), min(each))
            table.add_row(name, f"{row['tokens']:.0%}", *(f"{value:.1f}" for value in figures))
    console.print(table)


def draw(rows: Sequence[Row], path: Path) -> None:
    """Above how many times as long full calls take, below the worst of twenty pictures by computed tokens."""
    # Narrow: a phone shows it on its page, and the letters must stay readable.
    figure = Figure(figsize=(NARROW, 7.6), layout="constrained", facecolor="white")
    above, below = figure.subplots(2)
    true = [row for row in rows if row["part"] == "call" and row["references"] and row["size"] == "true"]
    for model, marker in zip(dict.fromkeys(row["model"] for row in true), MARKERS, strict=False):
        for on_host, style in ((False, "-"), (True, ":")):
            own = [row for row in true if row["model"] == model and row["on_host"] == on_host]
            label = model + (", keys on the host" if on_host else "")
            _line(above, [(row["references"], ratio(row)) for row in own], marker + style, OURS, label)
    _line(above, list(enumerate(KLEIN, 1)), "s--", BASELINES[0], "klein 9B-KV, as published")
    above.set_xticks(range(1, 5))
    above.set_xlabel("references of 1024 × 1024")
    above.set_title("time of a full call / of a lean one", fontsize=10)
    own = [row for row in rows if row["part"] == "quality" and (row["model"], row["references"]) == (MODEL, 1)]
    groups = {
        "lean calls, last step full": [
            row for row in own if row["way"].endswith("last full") and "reuse" not in row["way"]
        ],
        "lean calls, references=True": [row for row in own if row["way"] == "every 4th full"],
        "step reuse": [row for row in own if row["way"] in ("step reuse", "step reuse, 3x")],
        "step reuse and lean calls": [
            row for row in own if row["way"].startswith("step reuse") and "full" in row["way"]
        ],
        "tokens dropped": [row for row in own if "dropped" in row["way"]],
        "region-wise": [row for row in own if row["way"] == "region-wise"],
        "fewer steps": [row for row in own if row["way"].startswith("fewer")],
    }
    looks = [
        ("o-", OURS),
        ("D", OURS),
        ("s-", OURS),
        ("^-", OURS),
        ("o", PEERS[0]),
        ("o", PEERS[1]),
        ("o--", BASELINES[1]),
    ]
    for (label, found), (style, colour) in zip(groups.items(), looks, strict=True):
        points = sorted(
            (100 * row["tokens"], float(np.quantile(row["each"], 0.05))) for row in found if row["tokens"] < 1
        )
        _line(below, points, style, colour, label)
    below.set_xlabel("computed tokens, % of the full run's")
    below.set_title("faces-edit, 28 steps: dB of the 5 % quantile", fontsize=10)
    for panel in (above, below):
        quiet_axes(panel)
        if panel.lines:
            panel.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    explain(
        figure,
        "All of omnireuse is green. Above: the more references, the more a lean call saves. Below: how close to the "
        "full run nineteen of twenty pictures are at least; higher and further left is better.",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path, dpi=110)


def draw_edits(examples: Examples, full: Array, lean: Array, path: Path) -> None:
    """An edit a row: the reference, the instruction, and the pictures of full and of lean calls."""
    figure = Figure(figsize=(NARROW, 0.7 + 1.9 * len(full)), facecolor="white")
    panels = figure.subplots(len(full), 3, squeeze=False)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.005, top=0.87, wspace=0.04, hspace=0.2)
    for left, head in zip((0.01, 0.34, 0.67), ("reference", "full calls", "full and lean calls"), strict=True):
        figure.text(left, 0.905, head, fontsize=9.5, weight="bold")
    for panel in panels.ravel():
        panel.set_axis_off()
    for at, edit in enumerate(examples.edits):
        for panel, picture in zip(panels[at], (examples.references[at, 0], full[at], lean[at]), strict=True):
            panel.imshow(picture, interpolation="lanczos")
        panels[at, 0].set_title(edit.instruction, fontsize=9.5, loc="left")
    explain(
        figure,
        "Edits of people that training never saw, from the same noise. Lean calls are those of references=True.",
    )
    save_figure(figure, path, dpi=110)


def _line(panel: Any, points: Sequence[tuple[float, float]], style: str, colour: str, label: str) -> None:
    if points:
        panel.plot(*zip(*points, strict=True), style, color=colour, ms=4, lw=1.2, label=label)
