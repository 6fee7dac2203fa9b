"""Tables and the picture of `bench few_steps`."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console

from bench._common import new_table
from reference.figures import explain

mpl.use("Agg")
from matplotlib import pyplot as plt

Row = dict[str, Any]
PARTS = [("image", True), ("image", False), ("video", True), ("video", False)]
NOISE_DB = 0.3
"""How far below fewer steps the default may lie before it counts as a loss."""


def margin(row: Row | None) -> float | None:
    """PSNR above fewer steps; None where everything is computed."""
    return None if row is None or "fewer" not in row else row["psnr"] - row["fewer"]


def losses(record: Row) -> list[Row]:
    """Runs in which the default lies below fewer steps."""
    found = [(row, margin(row["default"])) for row in record["lengths"]]
    return [row for row, above in found if above is not None and above < -NOISE_DB]


def show(record: Row, console: Console) -> None:
    """Margins over fewer steps by length and shift, and what the exponents are worth."""
    shifts = list(dict.fromkeys(row["shift"] for row in record["lengths"]))
    for case, guided in PARTS:
        rows = [row for row in record["lengths"] if (row["case"], row["guided"]) == (case, guided)]
        if not rows:
            continue
        title = f"{words(case, guided)}: computed, default dB (above fewer steps; above holding) by shift"
        table = new_table(title, "steps", *shifts, *(f"half, {shift}" for shift in shifts))
        for steps in sorted({row["steps"] for row in rows}):
            at = {row["shift"]: row for row in rows if row["steps"] == steps}
            cells = [_cell(at.get(shift), kind) for kind in ("default", "half") for shift in shifts]
            table.add_row(str(steps), *cells)
        console.print(table)
    lost = losses(record)
    console.print(
        f"the default loses more than {NOISE_DB} dB to fewer steps in {len(lost)} of {len(record['lengths'])}"
    )
    for row in lost:
        console.print(f"  {words(row['case'], row['guided'])}, {row['steps']} steps, shift {row['shift']}")
    _show_exponents(record, console)


def _show_exponents(record: Row, console: Console) -> None:
    rows = record["exponents"]
    exponents = sorted({row["exponent"] for row in rows})
    if not exponents:
        return
    table = new_table("PSNR in dB by exponent", "run", "fewer steps", *(f"{each:g}" for each in exponents))
    for part in dict.fromkeys((row["case"], row["guided"], row["shift"]) for row in rows):
        own = {row["exponent"]: row for row in rows if (row["case"], row["guided"], row["shift"]) == part}
        fewer = next(iter(own.values()))["fewer"]
        cells = [f"{own[each]['psnr']:.1f}" if each in own else "–" for each in exponents]
        table.add_row(f"{words(*part[:2])}, shift {part[2]}", f"{fewer:.1f}", *cells)
    means = {case: exponent_means(record, case) for case in dict.fromkeys(row["case"] for row in rows)}
    for case, mean in means.items():
        table.add_row(f"{case}: mean", "", *(f"{mean.get(each, float('nan')):.1f}" for each in exponents))
    console.print(table)
    means = {case: mean for case, mean in means.items() if mean}
    for case, mean in means.items():
        best = max(mean, key=lambda exponent: mean[exponent])
        for other, judged in means.items():
            if other != case:
                console.print(
                    f"chosen on {case}: {best:g}; on {other} that is {judged[best]:.1f} dB, the best there "
                    f"{max(judged.values()):.1f}"
                )


def exponent_means(record: Row, case: str) -> dict[float, float]:
    """Mean PSNR for each exponent over the parts (shift and guidance) that were tried with all of them."""
    by_part: dict[tuple[bool, str], dict[float, float]] = {}
    for row in record["exponents"]:
        if row["case"] == case:
            by_part.setdefault((row["guided"], row["shift"]), {})[row["exponent"]] = row["psnr"]
    exponents = sorted({exponent for part in by_part.values() for exponent in part})
    whole = [part for part in by_part.values() if len(part) == len(exponents)]
    return {each: statistics.fmean(part[each] for part in whole) for each in exponents} if whole else {}


def words(case: str, guided: bool) -> str:
    """What a part is called."""
    return f"{'images' if case == 'image' else 'clips'}, {'guided' if guided else 'unguided'}"


def _cell(row: Row | None, kind: str) -> str:
    own = None if row is None else row[kind]
    if own is None:
        return "–"
    if "fewer" not in own:
        return "all"
    above_hold = f"; {own['psnr'] - own['hold']:+.1f}" if "hold" in own else ""
    return f"{own['computed']}: {own['psnr']:.1f} ({own['psnr'] - own['fewer']:+.1f}{above_hold})"


def draw(record: Row, path: Path) -> None:
    """Margins over fewer steps against the number of steps: solid the default, dotted half of the steps."""
    parts = [part for part in PARTS if any((row["case"], row["guided"]) == part for row in record["lengths"])]
    figure, panels = plt.subplots(
        1, len(parts), figsize=(4 * len(parts), 3.9), sharey=True, squeeze=False, layout="constrained"
    )
    shifts = list(dict.fromkeys(row["shift"] for row in record["lengths"]))
    for panel, part in zip(panels[0], parts, strict=True):
        for number, shift in enumerate(shifts):
            rows = sorted(
                (row for row in record["lengths"] if (row["case"], row["guided"], row["shift"]) == (*part, shift)),
                key=lambda row: row["steps"],
            )
            for kind, style in (("default", "o-"), ("half", "x:")):
                points = [(row["steps"], margin(row[kind])) for row in rows]
                known = [(steps, above) for steps, above in points if above is not None]
                label = f"shift {shift}" if kind == "default" else None
                panel.plot(
                    *zip(*known, strict=True), style, color=f"C{number}", ms=3, lw=1, label=label
                ) if known else None
        panel.axhline(0, color="black", lw=0.8)
        panel.set_title(words(*part), fontsize=10)
        panel.set_xlabel("steps of the run")
    panels[0][0].set_ylabel("dB above fewer steps\n(same number computed)")
    panels[0][0].legend(fontsize=8, title="solid: default\ndotted: half of the steps", title_fontsize=8)
    explain(
        figure,
        "How much closer to the full run than fewer steps of the same solver, for as many computed steps: above the "
        "line is better. Runs of fewer than 20 steps are computed whole by default.",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
