"""``omnireuse replay``: replay a trace, show the table, write the figures and the plot; or make a trace."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from omnireuse.base.records import check_writable
from omnireuse.base.terminal import progress_bar
from omnireuse_engines.vllm.pictures import write_picture
from omnireuse_engines.vllm.replay.generate import make_trace
from omnireuse_engines.vllm.replay.run import BOUND, LRU, Score, default_capacities, has_equal_sizes, replay
from omnireuse_engines.vllm.replay.traces import Access, read_trace, requests_of, write_trace

__all__ = ["bound_in_words", "run_make", "run_replay", "scores_tables"]

WIDTH = 80
"""Columns of the terminal that a table fits."""


def run_make(path: Path, console: Console, *, kind: str, num_accesses: int, seed: int, size: int | None) -> None:
    """Write a trace to `path`; the rest as `make_trace`."""
    made = make_trace(kind, num_accesses=num_accesses, seed=seed, size=size)
    write_trace(made, path)
    console.print(f"wrote {path}: {describe(made)}", highlight=False, soft_wrap=True)


def run_replay(path: Path, console: Console, *, capacities: Sequence[int] | None, out: Path) -> None:
    """Replay the trace of a file, and write ``replay.json`` and ``hit_ratio.png`` to the folder `out`.

    Args:
        path: of the trace, see `omnireuse_engines.vllm.replay.traces`.
        capacities: in embeddings, one replay each; None for shares of the trace's own items.

    Raises:
        ConfigError: the trace or a capacity cannot be.
    """
    trace = read_trace(path)
    results, picture = out / "replay.json", out / "hit_ratio.png"
    check_writable(results)
    capacities = capacities or default_capacities(trace)
    with progress_bar(*Progress.get_default_columns()) as progress:
        bar = progress.add_task("replay", total=len(capacities))
        scores = replay(trace, capacities=capacities, advance=lambda: progress.update(bar, advance=1))
    console.print(f"{path.name}: {describe(trace)}", highlight=False, soft_wrap=True)
    saved = "embeddings" if trace[0].cost is None else "encode time"
    for table in (
        *scores_tables("hit ratio", scores, lambda score: score.hit_ratio),
        *scores_tables(f"share of {saved} saved", scores, lambda score: score.saved),
    ):
        console.print(table)
    console.print(f"\n{BOUND}: {bound_in_words(trace)}", soft_wrap=True, highlight=False)
    for capacity in sorted({score.capacity for score in scores}):
        refused = max(score.num_refused for score in scores if score.capacity == capacity)
        if refused:
            console.print(f"[yellow]no room:[/] up to {refused:,} outputs were not kept at capacity {capacity:,}")
    record = {"trace": path.name, **facts(trace), "bound": bound_in_words(trace)}
    results.write_text(json.dumps(record | {"scores": [asdict(score) for score in scores]}, indent=1), encoding="utf-8")

    def draw() -> Any:
        from omnireuse_engines.vllm.replay.figure import hit_ratio_figure

        return hit_ratio_figure(path.name, scores)

    for said in (f"wrote {results}", write_picture(draw, picture)):
        console.print(said, highlight=False, soft_wrap=True)


def facts(trace: Sequence[Access]) -> dict[str, int]:
    """Count what is in a trace."""
    sizes = {access.key: access.size for access in trace}
    return {
        "accesses": len(trace),
        "requests": sum(1 for _ in requests_of(trace)),
        "items": len(sizes),
        "embeddings": sum(sizes.values()),
    }


def describe(trace: Sequence[Access]) -> str:
    """Say what is in a trace."""
    return ", ".join(f"{count:,} {what}" for what, count in facts(trace).items())


def bound_in_words(trace: Sequence[Access]) -> str:
    """Say which bound the clairvoyant row is."""
    if has_equal_sizes(trace):
        return "the optimum by Belady's MIN, all items being of one size; saved: the same, or PFOO-L if costs differ"
    return "PFOO-L, above what any cache can reach, items being of several sizes"


def scores_tables(title: str, scores: Sequence[Score], value: Callable[[Score], float]) -> Iterator[Table]:
    """One row a policy, one column a capacity; many capacities take several tables."""
    capacities = sorted({score.capacity for score in scores})
    gap = 2
    room = WIDTH - max(len(score.policy) for score in scores)
    fitting = max(1, room // (gap + max(len(f"{max(capacities):,}"), len("100.0%"))))
    num_tables = math.ceil(len(capacities) / fitting)
    each = math.ceil(len(capacities) / num_tables)
    for first in range(0, len(capacities), each):
        some = capacities[first : first + each]
        yield _scores_table(title, [score for score in scores if score.capacity in some], some, value)


def _scores_table(
    title: str, scores: Sequence[Score], capacities: Sequence[int], value: Callable[[Score], float]
) -> Table:
    by_place = {(score.policy, score.capacity): value(score) for score in scores}
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("embeddings", no_wrap=True)
    for capacity in capacities:
        table.add_column(f"{capacity:,}", justify="right", no_wrap=True)
    for policy in dict.fromkeys(score.policy for score in scores):
        cells = [f"{by_place[policy, capacity]:.1%}" for capacity in capacities]
        table.add_row(policy, *cells, style="dim" if policy in (LRU, BOUND) else "")
    return table
