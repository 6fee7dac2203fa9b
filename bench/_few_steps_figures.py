"""Tables and the picture of `bench few_steps`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from bench._common import new_table
from reference.figures import explain, panels_of

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
    if record["budgets"]:
        _show_budgets(record["budgets"], console)


def _show_budgets(rows: list[Row], console: Console) -> None:
    budgets = sorted({row["budget"] for row in rows}, reverse=True)
    table = new_table("default dB (above fewer steps; above holding) at so many of 28 steps", "run", *map(str, budgets))
    for part in dict.fromkeys((row["case"], row["guided"], row["shift"]) for row in rows):
        own = {row["budget"]: row for row in rows if (row["case"], row["guided"], row["shift"]) == part}
        table.add_row(f"{words(*part[:2])}, shift {part[2]}", *(budget_cell(own.get(budget)) for budget in budgets))
    console.print(table)


def budget_cell(row: Row | None) -> str:
    """The default's PSNR, and how far it is above fewer steps and above holding."""
    if row is None:
        return "–"
    return f"{row['psnr']:.1f} ({row['psnr'] - row['fewer']:+.1f}; {row['psnr'] - row['hold']:+.1f})"


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
    figure, panels = panels_of(len(parts), sharey=True)
    shifts = list(dict.fromkeys(row["shift"] for row in record["lengths"]))
    for panel, part in zip(panels, parts, strict=True):
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
    figure.supylabel("dB above fewer steps (same number computed)", fontsize=10)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    explain(
        figure,
        "How much closer to the full run than fewer steps of the solver, for as many computed steps: above the line "
        "is better. Solid: the default, which computes runs of fewer than 20 steps whole. Dotted: half of the steps.",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
