"""Time of full and lean calls, and of whole runs, at the sizes of published editing models."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import omnireuse
from bench._common import Row, Rows
from bench._editing_size import EDITING, EditingSampler
from bench._true_size import name_of
from omnireuse import Blend, EveryNth
from omnireuse.errors import StateError
from omnireuse.references import References

__all__ = ["MOST", "RUNS", "WAYS", "measure"]

MOST = 4
"""References at most."""
RUN = "flux.1-kontext"
RUNS = ((1, 28), (1, 8), (4, 8), (4, 28))
"""References and steps of whole runs, and their model."""
ALL, HALF = EveryNth(every=1), EveryNth(every=2)
FIRST, FOURTH = References(full_every=None, full_last=False), References(full_last=False)
WAYS: Mapping[str, dict[str, Any] | None] = {
    "full": None,
    "first full": {"policy": ALL, "references": FIRST},
    "every 4th full": {"policy": ALL, "references": FOURTH},
    "reuse": {"policy": HALF, "forecaster": Blend()},
    "reuse, first full": {"policy": HALF, "forecaster": Blend(), "references": FIRST},
    "reuse, every 4th full": {"policy": HALF, "forecaster": Blend(), "references": FOURTH},
}
"""Whole runs by name: arguments of `enable`. Runs of 8 steps have no step reuse."""


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Add what the record does not have. Each part is written when it is done; what the seconds leave no time for is
    added by the next run."""
    device, end = torch.device(options.device), time.monotonic() + options.seconds
    for name in options.models:
        about = {"size": options.size, "device": name_of(device), "model": name}
        is_quick = options.size == "tiny" or device.type == "cuda"
        missing = [part for part in _parts(name, is_quick=is_quick) if not rows.like(about | part)]
        if not missing or time.monotonic() >= end:
            continue
        sampler = EditingSampler.made(EDITING[name], size=options.size, device=device, dtype=torch.bfloat16)
        parameters = sum(weight.numel() for weight in sampler.transformer.parameters())
        for part in missing:
            if time.monotonic() >= end:
                break
            sampler.take(part["references"])
            try:
                found = (_call if part["part"] == "call" else _run)(sampler, part, options.repeats)
            except (StateError, torch.OutOfMemoryError) as error:
                print(f"{part} is left out: {error!s:.300}", flush=True)
                continue
            rows.add(about | part | found | {"parameters": parameters})
            print(rows.record["rows"][-1], flush=True)
        del sampler
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _parts(name: str, *, is_quick: bool) -> Iterator[Row]:
    """Calls, and where these take seconds those with keys on the host, and whole runs of one model."""
    for references in range(MOST + 1):
        yield {"part": "call", "references": references, "on_host": False}
    if not is_quick:
        return
    for references in (1, 2):
        yield {"part": "call", "references": references, "on_host": True}
    for references, steps in RUNS if name == RUN else ():
        for way in WAYS:
            if steps >= 20 or "reuse" not in way:
                yield {"part": "run", "references": references, "steps": steps, "way": way}


def _call(sampler: EditingSampler, part: Row, repeats: int) -> Row:
    """A full call of the untouched denoiser, one that keeps keys and values, and a lean one, in turns. On a CPU, where
    keeping takes no time beside the call, the first is left out for two references and more: calls take minutes."""
    is_cuda = sampler.device.type == "cuda"
    # Of the wall with a GPU, and else of this process, because the machine is shared.
    timed = partial(sampler.timed, clock=time.perf_counter if is_cuda else time.process_time)
    if is_cuda:  # kernels are loaded, and memory is taken
        timed(1)
    plan, kept, peaks = replace(FIRST, on_host=part["on_host"]), 0, Row()
    found: dict[str, list[float]] = {"full": [], "keeping": [], "lean": []}
    for _ in range(repeats):
        if is_cuda or part["references"] < 2:
            with _peak(sampler, peaks, "full"):
                found["full"] += timed(1)
        if not part["references"]:
            continue
        with _peak(sampler, peaks, "lean"), omnireuse.enable(sampler, policy=ALL, references=plan) as handle:
            keeping, *lean = timed(3 if is_cuda else 2)
        found["keeping"].append(keeping)
        found["lean"].append(lean[-1])
        kept = _checked(handle, full=1, lean=len(lean))
    return {"seconds": found, "peak_bytes": peaks, "kept_bytes": kept}


def _run(sampler: EditingSampler, part: Row, _repeats: int) -> Row:
    arguments, steps, peaks, kept = WAYS[part["way"]], part["steps"], Row(), 0
    around: AbstractContextManager[Any] = nullcontext()
    if arguments is not None:
        around = omnireuse.enable(sampler, **arguments)
    with _peak(sampler, peaks, "run"), around as handle:
        began = time.perf_counter()
        sampler.run(steps, lambda _step: nullcontext())
        sampler.wait()
        seconds = time.perf_counter() - began
    computed = steps
    if handle is not None:
        summary = handle.summary()
        computed -= summary.reused_calls
        if summary.references is not None:
            every = arguments["references"].full_every or steps  # type: ignore[index]
            kept = _checked(handle, full=-(-computed // every), lean=computed - -(-computed // every))
    return {"seconds": seconds, "computed": computed, "peak_bytes": peaks, "kept_bytes": kept}


def _checked(handle: omnireuse.Handle, *, full: int, lean: int) -> int:
    """Bytes that were kept.

    Raises:
        StateError: other calls were full or lean than should be.
    """
    summary = handle.summary()
    calls = summary.references
    if calls is None or (calls.full, calls.lean) != (full, lean):
        raise StateError(f"{full} full and {lean} lean calls were planned: {summary}")
    return calls.kept_bytes


@contextmanager
def _peak(sampler: EditingSampler, peaks: Row, name: str) -> Iterator[None]:
    """Most bytes of the GPU within it, the weights among them."""
    is_cuda = sampler.device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(sampler.device)
    yield
    if is_cuda:
        peaks[name] = max(peaks.get(name, 0), torch.cuda.max_memory_allocated(sampler.device))
