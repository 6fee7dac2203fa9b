"""``omnireuse engine-demo``: serve the same conversations twice, show the table, write the timeline."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from omnireuse.base.records import check_writable
from omnireuse.base.terminal import notes, progress_bar
from omnireuse_engines.vllm.engine import Engine, EngineConfig, TinyOmniModel
from omnireuse_engines.vllm.engine.conversation import Conversation, converse, made_up_conversations
from omnireuse_engines.vllm.engine.request import largest_difference
from omnireuse_engines.vllm.pictures import write_picture

__all__ = ["EngineRuns", "run_engine_demo"]


class EngineRuns(NamedTuple):
    """The same requests with the caches off and on.

    Attributes:
        off, on: the engines after all requests.
        difference: the largest of hidden states and input embeddings; 0.0 is bit-equal, infinite that tokens or codec
            tokens differ.
    """

    off: Engine
    on: Engine
    difference: float

    @property
    def is_identical(self) -> bool:
        """Whether all tokens and all codec tokens are the same."""
        return math.isfinite(self.difference)

    def record(self) -> dict[str, Any]:
        """What is written as JSON; ``marks`` are [step, request, kind, number], in order."""
        runs = {
            switch: {
                "name": f"caches {switch}",
                "num_steps": engine.num_steps,
                "seconds": engine.seconds,
                "counts": engine.counts,
                "marks": engine.marks,
            }
            for switch, engine in (("off", self.off), ("on", self.on))
        }
        return {**runs, "identical": self.is_identical, "largest_difference": self.difference}


def run_engine_demo(console: Console, *, out: Path, users: int, turns: int, num_blocks: int, seed: int) -> EngineRuns:
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
    results.write_text(json.dumps(comparison.record(), indent=1), encoding="utf-8")

    def draw() -> Any:
        from omnireuse_engines.vllm.engine_demo.timeline import timeline_figure

        return timeline_figure(comparison.off, comparison.on)

    for said in (f"wrote {results}", write_picture(draw, picture)):
        console.print(said, highlight=False, soft_wrap=True)
    return comparison


def compare_engines(
    model: TinyOmniModel,
    talks: list[Conversation],
    *,
    num_blocks: int,
    advance: Callable[[str], object] = lambda _name: None,
) -> EngineRuns:
    """Serve the conversations with the caches off, then on.

    Args:
        advance: called with the name of the run after every answer.
    """
    off, on = (
        Engine(model, EngineConfig(num_blocks=num_blocks, share_encodes=is_on, share_prefixes=is_on))
        for is_on in (False, True)
    )
    expected = converse(off, talks, advance=lambda: advance("caches off"))
    results = converse(on, talks, advance=lambda: advance("caches on"))
    is_whole = results.keys() == expected.keys()
    return EngineRuns(off, on, largest_difference(results, expected) if is_whole else math.inf)


def comparison_table(comparison: EngineRuns) -> Table:
    """One row a quantity."""
    off, on, difference = comparison
    title = f"{off.counts['finish']} requests of {len({mark.request_id.partition(',')[0] for mark in off.marks})} users"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for heading in ("caches off", "caches on", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for words, kind in (("encoder calls", "encode"), ("prefilled tokens", "prefill"), ("decoded tokens", "decode")):
        before, after = off.counts[kind], on.counts[kind]
        table.add_row(words, f"{before:,}", f"{after:,}", f"{before / after:.2f}×" if after else "–")
    table.add_row("tokens of prefix hits", "–", f"{on.counts['prefix hit']:,}", "")
    table.add_row("preemptions", f"{off.counts['preempt']}", f"{on.counts['preempt']}", "")
    table.add_row("engine steps", f"{off.num_steps}", f"{on.num_steps}", f"{off.num_steps / on.num_steps:.2f}×")
    table.add_row("wall-clock", f"{off.seconds:.2f} s", f"{on.seconds:.2f} s", f"{off.seconds / on.seconds:.2f}×")
    colour, verdict = "green", "yes, bit for bit" if difference == 0.0 else f"yes, states within {difference:.0e}"
    if not comparison.is_identical:
        colour, verdict = "bold red", "no"
    table.add_row("identical outputs", "", f"[{colour}]{verdict}[/]", "")
    return table
