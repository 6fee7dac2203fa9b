"""A comparison as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from omnireuse.evaluation.report.results import Comparison
from omnireuse.evaluation.report.style import decibels

__all__ = ["results_table"]


def results_table(comparison: Comparison) -> Table:
    """One row a variant; runs of fewer steps stand dimmed below the first cache that computed as many."""
    count = len(comparison.prompts)
    table = Table(
        title=f"{comparison.model}: {comparison.steps} steps, guidance {comparison.guidance:g}, {count} prompts",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="dim",
        caption="PSNR and SSIM are to the full run; the gain is in PSNR over plain fewer steps, as many as computed.",
        caption_justify="left",
        caption_style="dim",
    )
    table.add_column("variant", no_wrap=True)
    for heading in ("steps", "speed-up", "PSNR", "gain", "SSIM", "attributes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for variant in comparison.variants:
        gain = comparison.gain(variant)
        full = variant.role == "reference"
        table.add_row(
            f"  {variant.name}" if variant.role == "floor" else variant.name,
            f"{variant.computed_steps:.1f}",
            f"{comparison.speedup(variant):.2f}×",
            "–" if full else decibels(variant.psnr),
            "" if gain is None else f"[{'green' if gain > 0 else 'red'}]{decibels(gain, signed=True)}[/]",
            "–" if full else f"{variant.ssim:.4f}",
            "–" if variant.accuracy is None else f"{variant.accuracy:.0%}",
            style={"floor": "dim", "cache": "bold" if variant.name == comparison.highlight else ""}.get(
                variant.role, ""
            ),
        )
    return table
