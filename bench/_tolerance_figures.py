"""The table and the picture of `bench tolerance`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench._common import new_table
from reference.figures import explain, panels_of

SHARE, STEPS = 0.9, 28
"""Of the captions that must be within the tolerance; of a run."""
METHODS = ("untuned", "tuned")

Row = dict[str, Any]


def part_of(row: Row) -> tuple[str, str, bool]:
    """The part of the measurement that a row belongs to."""
    return row["case"], row["run"], row["guided"]


def within(errors: Sequence[float], tolerance: float) -> float:
    """The share of errors that are within the tolerance."""
    return statistics.fmean(error <= tolerance for error in errors)


def smallest_fixed(rows: Sequence[Row], tolerance: float) -> int:
    """The smallest number of computed steps above all at which the default is known to miss the tolerance."""
    fixed = [row for row in rows if row["method"] == "fixed"]
    missed = [row["setting"] for row in fixed if within(row["errors"], tolerance) < SHARE]
    return min((row["setting"] for row in fixed if row["setting"] > max(missed, default=0)), default=STEPS)


def figures_of(rows: Sequence[Row], method: str, tolerance: float) -> Row | None:
    """What a method leaves at a tolerance in one part, over all draws; None where it was not measured."""
    own = [row for row in rows if row["method"] == method and row["setting"] == tolerance]
    if not own:
        return None
    errors = [error for row in own for error in row["errors"]]
    computed = statistics.fmean(row["computed"] for row in own)
    fixed = smallest_fixed(rows, tolerance)
    fewer = next((r for r in rows if r["method"] == "fewer" and r["setting"] == round(computed)), None)
    return {
        "within": within(errors, tolerance),
        "worst": max(errors) / tolerance,
        "quantile": float(np.quantile(errors, 0.95)) / tolerance,
        "computed": computed,
        "fixed": fixed,
        "ratio": computed / fixed,
        "fewer": None if fewer is None else within(fewer["errors"], tolerance),
    }


def show(rows: Sequence[Row], console: Console) -> None:
    """For each part and tolerance: computed steps, share within, 95 % quantile and worst error over the tolerance."""
    headings = ["fixed"]
    for method in METHODS:
        headings += [f"{method}: steps", "within", "95 %", "worst", "fewer"]
    table = new_table("captions within the tolerance; errors as multiples of it", "run", *headings)
    parts = list(dict.fromkeys(map(part_of, rows)))
    tolerances = sorted({row["setting"] for row in rows if row["method"] in METHODS})
    for part in parts:
        own = [row for row in rows if part_of(row) == part]
        for tolerance in tolerances:
            cells = [str(smallest_fixed(own, tolerance))]
            for method in METHODS:
                found = figures_of(own, method, tolerance)
                if found is None:
                    cells += ["–"] * 5
                    continue
                fewer = "–" if found["fewer"] is None else f"{found['fewer']:.0%}"
                cells += [f"{found['computed']:.1f}", f"{found['within']:.0%}{'' if found['within'] >= SHARE else '*'}"]
                cells += [f"{found['quantile']:.2f}", f"{found['worst']:.2f}", fewer]
            table.add_row(f"{part[0]}, {part[1]}, {'guided' if part[2] else 'unguided'}, {tolerance:g}", *cells)
    console.print(table)
    for method in METHODS:
        every = [
            (tolerance, found)
            for part in parts
            for tolerance in tolerances
            if (found := figures_of([row for row in rows if part_of(row) == part], method, tolerance)) is not None
        ]
        for text, chosen in [("", every), *((f" at {t:g}", [e for e in every if e[0] == t]) for t in tolerances)]:
            if chosen:
                console.print(_sentence(method + text, [found for _, found in chosen]))


def _sentence(name: str, found: Sequence[Row]) -> str:
    kept = sum(each["within"] >= SHARE for each in found)
    share = statistics.fmean(each["within"] for each in found)
    computed = statistics.fmean(each["computed"] for each in found)
    ratio = statistics.fmean(each["ratio"] for each in found)
    thrifty = sum(each["ratio"] <= 1.25 for each in found)
    worst = max(each["worst"] for each in found)
    return (
        f"{name}: kept in {kept} of {len(found)}, {share:.1%} of the captions, worst {worst:.1f} times; {computed:.1f} "
        f"steps computed, {ratio:.2f} times the smallest fixed number, within 1.25 in {thrifty}"
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    """The error that nine of ten captions stay within, over the tolerance, of every part."""
    figure, panels = panels_of(2, sharey=True)
    tolerances = sorted({row["setting"] for row in rows if row["method"] in METHODS})
    for panel, method in zip(panels, METHODS, strict=True):
        panel.plot(tolerances, tolerances, color="0.3", lw=1, label="the tolerance")
        for part in dict.fromkeys(map(part_of, rows)):
            points = []
            for tolerance in tolerances:
                own = [r for r in rows if (r["method"], r["setting"], part_of(r)) == (method, tolerance, part)]
                errors = [error for row in own for error in row["errors"]]
                if errors:
                    points.append((tolerance, max(float(np.quantile(errors, SHARE)), 1e-5)))
            if points:
                color = f"C{list(dict.fromkeys(row['case'] for row in rows)).index(part[0])}"
                panel.plot(*zip(*points, strict=True), "-" if part[2] else "--", color=color, lw=1, marker=".")
        for number, case in enumerate(dict.fromkeys(row["case"] for row in rows)):
            panel.plot([], [], color=f"C{number}", label=case)
        panel.set(xscale="log", yscale="log", xlabel="tolerance", title=method)
        panel.set_xticks(tolerances, [f"{tolerance:g}" for tolerance in tolerances])
        panel.set_xticks([], minor=True)
    panels[0].set(ylabel="relative L1 error of the latents,\n90 % quantile", ylim=(1e-3, None))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    explain(figure, "Below the grey line, nine of ten captions keep the tolerance. Dashed: without guidance.")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
