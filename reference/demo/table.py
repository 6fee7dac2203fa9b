"""The comparison of the demo as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from omnireuse_lab.report.style import decibels
from reference.demo.compare import ATTRIBUTES
from reference.demo.record import Demo

__all__ = ["demo_table"]


def demo_table(demo: Demo) -> Table:
    """One row for each run; runs of fewer steps stand dimmed below the first cache that computed as many."""
    case, gains = demo.case, demo.gains
    table = Table(
        title=f"{case.pipeline}: {case.steps} steps, guidance {case.guidance:g}, {len(case.prompts)} prompts",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
        caption="PSNR and SSIM are to the full run; the gain is in PSNR over plain fewer steps, as many as computed.",
        caption_justify="left",
        caption_style="dim",
    )
    table.add_column("run", no_wrap=True)
    for heading in ("steps", "speed-up", "PSNR", "gain", "SSIM", "attributes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("full", f"{case.steps:.1f}", "1.00×", "–", "", "–", f"{case.full.scores[ATTRIBUTES]:.0%}")
    for place, point in enumerate(case.points):
        gain = gains.get(place)
        plain = point.family == "baseline"
        table.add_row(
            f"  {point.method}" if plain else point.method,
            f"{point.computed_steps:.1f}",
            "–" if point.speedup is None else f"{point.speedup.median:.2f}×",
            "–" if point.psnr is None else decibels(point.psnr.mean),
            "" if gain is None else f"[{'green' if gain > 0 else 'red'}]{decibels(gain, signed=True)}[/]",
            "–" if point.ssim is None else f"{point.ssim.mean:.4f}",
            f"{point.scores[ATTRIBUTES].mean:.0%}",
            style="dim" if plain else "" if place else "bold",
        )
    return table
