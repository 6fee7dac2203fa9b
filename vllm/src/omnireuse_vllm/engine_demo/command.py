"""``omnireuse engine-demo``: serve the same conversations twice, show the table, write the timeline."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from omnireuse.base.records import check_writable
from omnireuse.base.terminal import notes, progress_bar
from omnireuse_vllm.engine import Engine, EngineConfig, Result, TinyOmniModel
from omnireuse_vllm.engine.conversation import Conversation, converse, made_up_conversations
from omnireuse_vllm.engine.request import largest_difference
from omnireuse_vllm.engine_demo.record import EngineComparison, EngineRun, write_comparison
from omnireuse_vllm.pictures import write_picture

__all__ = ["compare_engines", "comparison_table", "run_engine_demo"]


def run_engine_demo(
    console: Console, *, out: Path, users: int, turns: int, num_blocks: int, seed: int
) -> EngineComparison:
    """Serve conversations with the caches off and on; write ``engine.json`` and ``timeline.png`` to the folder `out`.

    Args:
        users: conversations side by side, ≥ 1.
        turns: questions of each user, ≥ 1.
        num_blocks: blocks of 16 tokens of the KV cache; fewer than the conversations need make preemptions.
        seed: decides what is said and shown.

    Raises:
        ConfigError: a conversation does not fit in `num_blocks`.
    """
    results, picture = out / "engine.json", out / "timeline.png"
    check_writable(results)
    with notes.status("building the tiny omni model"):
        model = TinyOmniModel(seed=0)
    talks = made_up_conversations(model, users=users, turns=turns, seed=seed)
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar(*columns) as progress:
        bar = progress.add_task("serving", total=2 * users * turns)
        comparison = compare_engines(
            model, talks, num_blocks=num_blocks,
            advance=lambda name: progress.update(bar, advance=1, description=name),
        )  # fmt: skip
    console.print(comparison_table(comparison))
    console.print()
    write_comparison(comparison, results)

    def draw() -> Any:
        from omnireuse_vllm.engine_demo.timeline import timeline_figure

        return timeline_figure(comparison)

    for said in (f"wrote {results}", write_picture(draw, picture)):
        console.print(said, highlight=False, soft_wrap=True)
    return comparison


def compare_engines(
    model: TinyOmniModel,
    talks: list[Conversation],
    *,
    num_blocks: int,
    advance: Callable[[str], object] = lambda _name: None,
) -> EngineComparison:
    """Serve the conversations with the caches off, then on.

    Args:
        advance: called with the name of the run after every answer.
    """

    def serve(*, on: bool) -> tuple[EngineRun, dict[str, Result]]:
        engine = Engine(model, EngineConfig(num_blocks=num_blocks, share_encodes=on, share_prefixes=on))
        name = "caches on" if on else "caches off"
        results = converse(engine, talks, advance=lambda: advance(name))
        marks = [(mark.step, mark.request_id, mark.kind, mark.count) for mark in engine.marks]
        run = EngineRun(
            name=name, num_steps=engine.num_steps, seconds=engine.seconds, counts=dict(engine.counts), marks=marks
        )
        return run, results

    off, expected = serve(on=False)
    on, results = serve(on=True)
    difference = largest_difference(results, expected)
    same = results.keys() == expected.keys() and math.isfinite(difference)
    return EngineComparison(off=off, on=on, identical=same, largest_difference=difference)


def comparison_table(comparison: EngineComparison) -> Table:
    """One row a quantity."""
    off, on = comparison.off, comparison.on
    title = f"{off.counts['finish']} requests of {len({name.partition(',')[0] for name in off.requests})} users"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for heading in (off.name, on.name, "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for words, kind in (("encoder calls", "encode"), ("prefilled tokens", "prefill"), ("decoded tokens", "decode")):
        before, after = off.counts.get(kind, 0), on.counts.get(kind, 0)
        table.add_row(words, f"{before:,}", f"{after:,}", f"{before / after:.2f}×" if after else "–")
    table.add_row("tokens of prefix hits", "–", f"{on.counts.get('prefix hit', 0):,}", "")
    table.add_row("preemptions", f"{off.counts.get('preempt', 0)}", f"{on.counts.get('preempt', 0)}", "")
    table.add_row("engine steps", f"{off.num_steps}", f"{on.num_steps}", f"{off.num_steps / on.num_steps:.2f}×")
    table.add_row("wall-clock", f"{off.seconds:.2f} s", f"{on.seconds:.2f} s", f"{comparison.speedup:.2f}×")
    verdict = f"[{'green' if comparison.identical else 'bold red'}]{comparison.verdict}[/]"
    table.add_row("identical outputs", "", verdict, "")
    return table
