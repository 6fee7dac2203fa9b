"""The prefix cache beside plain copies, and beside vllm-omni's manager: time of update and merge.

    python -m bench prefix_cache [--widths 1024 2048 4096 8192] [--requests 8 32 128 256] [--out out/bench]

Everything in bfloat16 on the CPU, blocks of 16 tokens on scattered places of a pool that was touched before. Beside
each figure stands a plain copy of as many bytes, timed in turn with it: for update into the next part of a buffer as
large as the pool, for merge request by request into memory that is there. The copy of an update has its own source,
so that neither finds it in the processor's cache. Ratios are of one round. Times are processor time of one thread, so
that other work on the machine does not count.

Where vllm-omni can be imported (scripts/vllm_omni_venv.sh), its own manager and ours behind its interface run in turn
(`bench/_prefix_managers.py`); there the times are of all threads, as that manager reads prefixes on one of its own.
"""

from __future__ import annotations

import itertools
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console

import omnireuse
from bench import _prefix_managers
from bench._common import new_parser, new_table, write_record
from omnireuse.core.prefix_cache import OmniTensorPrefixCache
from omnireuse.errors import ConfigError

BLOCK = 16


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``prefix_cache.json``, ``prefix_managers.json`` and the tables."""
    parser = new_parser("prefix_cache", __doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--requests", type=int, nargs="+", default=[8, 32, 128, 256])
    parser.add_argument("--tokens", type=int, default=32, help="a request fills and then hits")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args(arguments)
    if options.tokens % BLOCK or min(options.tokens, options.repeats, *options.widths, *options.requests) < 1:
        raise ConfigError(f"bench prefix_cache: numbers must be ≥ 1 and --tokens a multiple of {BLOCK}, got {options}")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    cells = [(width, requests) for width in options.widths for requests in options.requests]
    record: dict[str, Any] = {
        "command": "python -m bench prefix_cache",
        "environment": environment(),
        "bandwidth": [bandwidth(w, r, options.tokens, options.repeats) for w, r in cells],
    }
    show(record, Console())
    write_record(record, options.out, "prefix_cache")
    if not _prefix_managers.is_importable():
        Console().print("vllm-omni is not installed: its manager is not measured (scripts/vllm_omni_venv.sh)")
        return
    record = {
        "command": "python -m bench prefix_cache",
        "environment": environment(),
        "managers": [managers(w, r, options.tokens, options.repeats) for w, r in cells],
    }
    show_managers(record, Console())
    write_record(record, options.out, "prefix_managers")


def environment() -> dict[str, str]:
    """What the figures depend on; without the laboratory, which an engine's environment lacks."""
    processor = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    python = platform.python_version()
    return {"omnireuse": omnireuse.__version__, "python": python, "torch": torch.__version__, "processor": processor}


class Engine:
    """Requests on scattered blocks of a cache, and the calls that an engine makes."""

    def __init__(self, width: int, num_requests: int, num_blocks_each: int) -> None:
        self.width, self.num_requests = width, num_requests
        num_blocks = 4 * num_requests * num_blocks_each
        self.cache = OmniTensorPrefixCache(num_blocks, BLOCK, width, torch.bfloat16)
        self.cache.hidden_states_cache.zero_()  # touch every page; the system's work of the first write is not ours
        order = list(range(num_blocks))
        random.Random(0).shuffle(order)
        self.places = torch.tensor(order).view(4, num_requests, num_blocks_each)
        self.turn = 0

    def next_place(self) -> torch.Tensor:
        """Blocks (requests, blocks each) that were used longest ago."""
        self.turn += 1
        return self.places[self.turn % 4]

    def write(self, hidden: torch.Tensor, slots: torch.Tensor) -> None:
        """One step's writes."""
        self.cache.reset_prefix_cached_new_req_ids()
        self.cache.update_omni_tensor_prefix_cache(hidden, None, len(slots), slots)

    def batch(self, blocks: torch.Tensor, num_cached: int) -> SimpleNamespace:
        """The engine's batch while each request has this many tokens cached."""
        group = SimpleNamespace(block_table=SimpleNamespace(cpu=blocks.to(torch.int32)))
        names = {f"r{k}": k for k in range(self.num_requests)}
        computed = [num_cached] * self.num_requests
        return SimpleNamespace(req_id_to_index=names, num_computed_tokens_cpu=computed, block_table=[group])


def slots_of(blocks: torch.Tensor) -> torch.Tensor:
    """All slots of these blocks, request by request."""
    return (blocks.reshape(-1, 1) * BLOCK + torch.arange(BLOCK)).reshape(-1)


def timed(function: Callable[[], object]) -> float:
    """Processor seconds of one call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def bandwidth(width: int, num_requests: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Bytes a second of update and merge, with a plain copy of the bytes after each."""
    engine = Engine(width, num_requests, tokens // BLOCK)
    hidden = torch.randn(num_requests * tokens, width).bfloat16()
    source, copied = hidden.clone(), hidden.clone().split(tokens)
    beside = torch.zeros(4, *hidden.shape, dtype=torch.bfloat16)
    seconds: dict[str, list[float]] = {name: [] for name in ("update", "update copy", "merge", "merge copy")}
    new = hidden[:num_requests]  # one token each, the least that a hit computes
    starts = list(range(num_requests))
    for number in range(-2, repeats):
        place = engine.next_place()
        slots = slots_of(place)
        spent = {"update": timed(lambda slots=slots: engine.write(hidden, slots))}
        spent["update copy"] = timed(lambda number=number: beside[number % 4].copy_(source))
        batch = engine.batch(place, tokens)
        engine.cache.reset_prefix_cached_new_req_ids()
        for name in batch.req_id_to_index:
            engine.cache.add_prefix_cached_new_req_id(name)
        scheduled = dict.fromkeys(batch.req_id_to_index, 1)
        spent["merge"] = timed(
            lambda batch=batch, n=scheduled: engine.cache.get_merged_hidden_states(starts, batch, new, n)
        )
        pieces = beside[number % 4].split(tokens)
        spent["merge copy"] = timed(
            lambda pieces=pieces: [to.copy_(piece) for to, piece in zip(copied, pieces, strict=True)]
        )
        if number >= 0:  # the first rounds warm up
            for part, value in spent.items():
                seconds[part].append(value)
    result: dict[str, Any] = {"width": width, "requests": num_requests}
    for name, num_tokens in (("update", tokens), ("merge", tokens + 1)):
        num_bytes = num_requests * num_tokens * width * 2
        own = [num_bytes / s / 1e9 for s in seconds[name]]
        copy = [hidden.nbytes / s / 1e9 for s in seconds[f"{name} copy"]]
        ratios = [a / b for a, b in zip(own, copy, strict=True)]
        shares = {"gb_per_s": spread(own), "copy_gb_per_s": spread(copy), "share_of_copy": spread(ratios)}
        result[name] = {"bytes": num_bytes, **shares}
    return result


def managers(width: int, num_requests: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of a step's calls with each manager, and how many times as long vllm-omni's takes."""
    rounds = list(_prefix_managers.rounds(width, num_requests, tokens, repeats))
    result: dict[str, Any] = {"width": width, "requests": num_requests}
    for part, (which, clock) in itertools.product(("update", "merge"), enumerate(("processor", "clock"))):
        spent = {name: [each[part][name][which] * 1e3 for each in rounds] for name in ("omnireuse", "vllm-omni")}
        ratios = [theirs / ours for ours, theirs in zip(spent["omnireuse"], spent["vllm-omni"], strict=True)]
        result[f"{part}, {clock}"] = {**{n: spread(v) for n, v in spent.items()}, "ratio": spread(ratios)}
    return result


def spread(values: list[float]) -> dict[str, float]:
    """Median and middle half."""
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return {"median": median, "low": low, "high": high}


def show(record: dict[str, Any], console: Console) -> None:
    """The table; spreads are the middle half of the rounds."""
    heads = ("requests", "MiB", "update", "share of copy", "merge", "share of copy")
    table = new_table("bandwidth, GB/s, and share of a plain copy", "row", *heads)
    for cell in record["bandwidth"]:
        figures = []
        for part in (cell["update"], cell["merge"]):
            figures += [f"{part['gb_per_s']['median']:.1f}", words(part["share_of_copy"], ".2f")]
        mib = f"{cell['update']['bytes'] / 2**20:.1f}"
        table.add_row(f"{cell['width'] * 2 // 1024} KB", str(cell["requests"]), mib, *figures)
    console.print(table)


def show_managers(record: dict[str, Any], console: Console) -> None:
    """The tables of both managers."""
    heads = [
        f"{part} {of}" for part in ("update", "merge") for of in ("omnireuse", "vllm-omni", "ratio", "by the clock")
    ]
    table = new_table("ms of a step's calls, processor time, and the ratios", "row", "requests", *heads)
    for cell in record["managers"]:
        figures = []
        for part in ("update", "merge"):
            spent = cell[f"{part}, processor"]
            figures += [f"{spent[name]['median']:.2f}" for name in ("omnireuse", "vllm-omni")]
            figures += [words(spent["ratio"], ".1f"), f"{cell[f'{part}, clock']['ratio']['median']:.1f}"]
        table.add_row(f"{cell['width'] * 2 // 1024} KB", str(cell["requests"]), *figures)
    console.print(table)


def words(part: dict[str, float], form: str) -> str:
    """Median and spread."""
    return f"{part['median']:{form}} ({part['low']:{form}}–{part['high']:{form}})"


if __name__ == "__main__":
    main()
