"""Step reuse on transformers of true size: time of computed and reused steps, kernel launches, memory. Needs CUDA.

    python -m bench gpu [--models flux.1 wan2.1-14b qwen-image] [--ways "CUDA graphs" …] [--steps 12] [--out out/bench]
    python -m bench gpu --tiny --device cpu

Random weights in bfloat16 (24, 28 and 41 GB), every second step computed, in each region in turn with full runs. The
device is waited for after every step, so a step's time includes its host time. Kernel launches are counted by
torch.profiler in a further run.

What `--seconds` leave no time for is left out, and said. A later call with the same `--out` adds what the record there
lacks of this device, each model with the steps and repeats of its own call.

Then each model runs compiled, in CUDA graphs, quantised and offloaded, in region "step". Beside the times stand whether
a run that computes every step, and a run after reuse, are bit-equal to the untouched one, and how often the host waits
for the device in a full run and in one with reuse.

`--tiny --device cpu` takes the same path with tiny models, to try the code; its times say nothing, and launches and
waits are null there.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
import warnings
from contextlib import nullcontext

import torch
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

import omnireuse
from bench._common import Row, Rows, new_parser, new_table, record_of
from bench._gpu_ways import WAYS
from bench._true_size import MODELS, Sampler, name_of
from omnireuse import Blend, EveryNth
from omnireuse.errors import ConfigError
from omnireuse.loop.strategy import REGIONS

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel")
LEAST_STEPS = 6


def main(arguments: list[str] | None = None) -> None:
    """Add what is missing to ``gpu.json``, and show tables."""
    parser = new_parser("gpu", __doc__)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--regions", nargs="+", choices=list(REGIONS), default=list(REGIONS))
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=math.inf, help="nothing begins later than that")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the code")
    options = parser.parse_args(arguments)
    check(options, torch.device(options.device))
    show(record_of("gpu", options, add)["rows"], Console())


def add(rows: Rows, options: argparse.Namespace) -> None:
    """Measure what the record of each model lacks on this device."""
    device, end = torch.device(options.device), time.monotonic() + options.seconds
    for name in options.models:
        key = {"model": name, "device": name_of(device), "tiny": options.tiny}
        for part in ("regions", *options.ways):
            if rows.like(key | {"part": part}):
                continue
            if time.monotonic() >= end:
                print(f"{name}, {part} is left out: the seconds are over")
            elif part == "regions":
                asked = {"steps": options.steps, "repeats": options.repeats}
                rows.add(key | {"part": part} | asked | measure(name, options, device))
            else:
                rows.add(key | {"part": part} | measure_way(name, part, options, device))


def check(options: argparse.Namespace, device: torch.device) -> None:
    """Whether this can be run here.

    Raises:
        ConfigError: no CUDA device, models of true size elsewhere, or numbers out of range.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"bench gpu(--device {options.device}): needs a CUDA device, and torch {torch.__version__} sees none here; "
            "--tiny --device cpu takes the same path with tiny models"
        )
    if device.type != "cuda" and not options.tiny:
        raise ConfigError(
            f"bench gpu(--device {options.device}): must be a CUDA device with models of true size; add --tiny"
        )
    if options.steps < LEAST_STEPS or options.repeats < 1:
        raise ConfigError(
            f"bench gpu: --steps must be at least {LEAST_STEPS} and --repeats at least 1, "
            f"got {options.steps} and {options.repeats}"
        )


def measure(name: str, options: argparse.Namespace, device: torch.device) -> Row:
    """Full runs and every region, in turns; what a model needs is freed with it."""
    sampler = Sampler(MODELS[name], tiny=options.tiny, device=device, dtype=torch.bfloat16)
    sampler.run(2, lambda _step: nullcontext())  # kernels are chosen and loaded
    full: list[list[float]] = []
    rows: dict[str, list[Row]] = {region: [] for region in options.regions}
    for _ in range(options.repeats):
        full.append(sampler.timed(options.steps))
        for region in options.regions:
            rows[region].append(measure_region(sampler, region, options.steps, full[-1]))
    return {
        "parameters": sum(weight.numel() for weight in sampler.transformer.parameters()),
        "full_step_ms": _ms([seconds for run in full for seconds in run]),
        "launches_full": launches(sampler, options.steps, options.steps // 2),
        "regions": {region: summarised(each) for region, each in rows.items()},
    }


def measure_region(sampler: Sampler, region: str, steps: int, full: list[float]) -> Row:
    """One run in this region beside a full one, then a run for the profiler alone."""
    policy = EveryNth(every=2)
    with omnireuse.enable(sampler, policy=policy, forecaster=Blend(), region=region) as handle:
        if sampler.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(sampler.device)
        seconds = sampler.timed(steps)
        peak = torch.cuda.max_memory_allocated(sampler.device) if sampler.device.type == "cuda" else None
        summary, events = handle.summary(), handle.events
        reused = sorted({event.step for event in events if event.reused})
        # In the middle of the run, where the forecaster has all of its history.
        count = launches(sampler, steps, reused[len(reused) // 2])
    return {
        "reused_step_seconds": [seconds[step] for step in reused],
        "computed_step_seconds": [seconds[step] for step in range(steps) if step not in reused],
        "launches_reused": count,
        "kept_bytes": summary.kept_bytes,
        "peak_bytes": peak,
        "speedup": sum(full) / sum(seconds),
        "steps_over_computed": summary.step_ratio,
        "host_ms": summary.host_seconds * 1e3,
    }


def measure_way(name: str, way: str, options: argparse.Namespace, device: torch.device) -> Row:
    """One way of running the model: full runs beside runs with reuse, and what reuse must leave bit-equal. What the
    machine cannot do is noted with its error, and the others go on."""
    sampler = Sampler(MODELS[name], tiny=options.tiny, device=device, dtype=torch.bfloat16)
    try:
        WAYS[way](sampler)
        # A copy: the next run of a CUDA graph overwrites what the last one returned.
        full = _latents(sampler, options.steps)
        runs = [sampler.timed(options.steps) for _ in range(options.repeats)]
        waits_full = host_waits(sampler, options.steps)
        with omnireuse.enable(sampler, policy="never") as handle:
            computing = torch.equal(_latents(sampler, options.steps), full)
        reusing: list[list[float]] = []
        with omnireuse.enable(sampler, policy=EveryNth(every=2), forecaster=Blend()) as handle:
            for _ in range(options.repeats):
                reusing.append(sampler.timed(options.steps))
            waits = host_waits(sampler, options.steps)
            ratio = handle.summary().step_ratio
        return {
            "full_step_ms": _ms([seconds for run in runs for seconds in run]),
            "speedup": sum(map(sum, runs)) / sum(map(sum, reusing)),
            "steps_over_computed": ratio,
            "computing_is_equal": computing,
            "removed_is_equal": torch.equal(_latents(sampler, options.steps), full),
            "host_waits_full": waits_full,
            "host_waits": waits,
        }
    except Exception as error:  # a kernel or a library that is not there is a result
        return {"error": f"{type(error).__name__}: {error!s:.300}"}
    finally:
        torch._dynamo.reset()
        gc.collect()  # a compiled model is in circles
        if device.type == "cuda":
            torch.cuda.empty_cache()


def host_waits(sampler: Sampler, steps: int) -> int | None:
    """How often the host waits for the device in a run, by torch's own count; None without CUDA."""
    if sampler.device.type != "cuda":
        return None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            sampler.run(steps, lambda _step: nullcontext())
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(each.message) for each in said)


def _latents(sampler: Sampler, steps: int) -> torch.Tensor:
    return sampler.run(steps, lambda _step: nullcontext()).clone()


def summarised(runs: list[Row]) -> Row:
    """The repeats of one region as one row."""
    speedups = [run["speedup"] for run in runs]
    kept = {name: runs[-1][name] for name in ("launches_reused", "kept_bytes", "peak_bytes", "steps_over_computed")}
    return kept | {
        "reused_step_ms": _ms([seconds for run in runs for seconds in run["reused_step_seconds"]]),
        "computed_step_ms": _ms([seconds for run in runs for seconds in run["computed_step_seconds"]]),
        "speedup": {"median": statistics.median(speedups), "lowest": min(speedups), "highest": max(speedups)},
        "host_ms_a_decision": statistics.median(run["host_ms"] for run in runs),
    }


def launches(sampler: Sampler, steps: int, step: int) -> int | None:
    """Kernel launches of one step of a run; None without CUDA."""
    on_cuda = sampler.device.type == "cuda"
    profiler = profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])])
    sampler.run(steps, lambda at: profiler if at == step else nullcontext())
    if not on_cuda:
        return None
    return sum(event.count for event in profiler.key_averages() if event.key.startswith(LAUNCHES))


def _ms(seconds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds) * 1e3, "lowest": min(seconds) * 1e3, "highest": max(seconds) * 1e3}


def show(rows: list[Row], console: Console) -> None:
    """A table of models by regions, and one of models by ways of running."""
    headings = ("region", "computed ms", "reused ms", "launches", "MiB kept", "speed-up", "steps / computed")
    table = new_table("every second step computed", "model", *headings)
    for model in (row for row in rows if row["part"] == "regions"):
        full = f"{model['full_step_ms']['median']:.2f}"
        table.add_row(model["model"], "full run", full, "", _count(model["launches_full"]))
        for region, row in model["regions"].items():
            speedup = row["speedup"]
            table.add_row(
                model["model"],
                region,
                f"{row['computed_step_ms']['median']:.2f}",
                f"{row['reused_step_ms']['median']:.2f}",
                _count(row["launches_reused"]),
                f"{row['kept_bytes'] / 2**20:.2f}",
                f"{speedup['median']:.2f} ({speedup['lowest']:.2f}–{speedup['highest']:.2f})",
                f"{row['steps_over_computed']:.2f}",
            )
    console.print(table)
    headings = ("way", "full ms", "speed-up", "steps / computed", "computing equal", "removed equal", "waits, full")
    table = new_table("ways of running, region step", "model", *headings, "waits")
    for row in (row for row in rows if row["part"] != "regions"):
        if "error" in row:
            table.add_row(row["model"], row["part"], row["error"])
            continue
        figures = (row["full_step_ms"]["median"], row["speedup"], row["steps_over_computed"])
        equal = ("yes" if row[f"{each}_is_equal"] else "NO" for each in ("computing", "removed"))
        waits = (_count(row.get("host_waits_full")), _count(row["host_waits"]))
        table.add_row(row["model"], row["part"], *(f"{each:.2f}" for each in figures), *equal, *waits)
    console.print(table)


def _count(launched: int | None) -> str:
    return "–" if launched is None else str(launched)


if __name__ == "__main__":
    main()
