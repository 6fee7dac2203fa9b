"""Modulation that is computed once: bits, weights that leave, bytes of tables, times, and streams of group offload.

    python -m bench modulation [--parts pipelines sizes blocks groups gpu] [--steps 3] [--link 1.0]

`pipelines`: every tiny pipeline, its share of weights with a table and whether pictures keep their bits. `sizes`: true
shapes without data; which layers have tables is known from the tiny model of the class. `blocks`: two blocks of true
size in bfloat16 on the CPU. `groups`: the same with group offload by block, its link throttled to `--link` GB/s: real
copies, and the time that the link would have taken longer. `gpu` needs CUDA: Qwen-Image of true size.
"""

from __future__ import annotations

import argparse
import gc
import re
import statistics
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from diffusers.hooks.group_offloading import ModuleGroup
from rich.console import Console

import omnireuse
from bench._common import Row, Rows, new_parser, new_table, record_of
from bench._true_size import MODELS, Sampler, name_of
from omnireuse.modulation.cache import ModulationCache
from tests.helpers import tiny
from tests.helpers.tiny import Tiny
from tests.models.diffusion.pipelines import image, modular, unet, video

IMAGES = ("aura_flow", "bria", "cogview_4", "flux_2", "hidream", "hunyuan_image", "ovis_image", "sd3")
PIPELINES: dict[str, Any] = {
    "qwen_image": tiny.qwen_image,
    "flux": tiny.flux,
    "wan": tiny.wan,
    "minimax_h3": modular.minimax_h3,
    **{name: image.PIPELINES[name] for name in IMAGES},
    **{name: video.PIPELINES[name] for name in ("hunyuan_video_15", "mochi")},
    "sd_img2img": unet.PIPELINES["sd_img2img"],
}
SIZED = {
    **{
        name: {}
        for name in (
            "qwen_image",
            "flux",
            "aura_flow",
            "hunyuan_video_15",
            "mochi",
            "ovis_image",
            "cogview_4",
            "minimax_h3",
        )
    },
    "sd3": {"num_layers": 38, "num_attention_heads": 38, "pos_embed_max_size": 192},  # Stable Diffusion 3.5 large
}
"""What differs from the defaults of the class, which are the published size."""
STEPS = (4, 8, 28, 50)
PARTS = ("pipelines", "sizes", "blocks", "groups", "gpu")
GIB = 2**30
RATIOS = ("again", "new_schedule")
PAIRS = 3


def main(arguments: list[str] | None = None) -> None:
    """Add what is missing to ``modulation.json``, and show tables."""
    parser = new_parser("modulation", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--link", type=float, default=1.0, help="GB/s of the link of group offload")
    options = parser.parse_args(arguments)
    show(record_of("modulation", options, add)["rows"], Console())


def add(rows: Rows, options: argparse.Namespace) -> None:
    """Measure what the record lacks."""
    for part in options.parts:
        for name in {"pipelines": PIPELINES, "sizes": SIZED, "gpu": ["qwen-image"]}.get(part, ["qwen-image", "flux.1"]):
            key = {"part": part, "model": name}
            if part == "gpu" and not torch.cuda.is_available():
                print("gpu is left out: it needs CUDA")
            elif not rows.like(key):
                rows.add(key | globals()[f"measure_{part}"](name, options))


def denoiser(pipe: Any) -> Any:
    """The denoiser of a pipeline."""
    return getattr(pipe, "transformer", None) or pipe.unet


def measure_pipelines(name: str, _options: argparse.Namespace) -> Row:
    """A first picture, a second one, and one of another schedule, with weights in a file."""
    made: Tiny = PIPELINES[name]()
    runs = [{}, {"seed": 1}, {"steps": 4}]
    want = [made.run(**run) for run in runs]
    cache = installed(made.pipe, release="disk")
    equal = []
    for run, each in zip(runs, want, strict=True):
        before = cache.details()["computed"]
        equal.append(bool(torch.equal(made.run(**run), each)))
        if run == {"seed": 1}:
            again = cache.details()["computed"] - before
    found = cache.details()
    return {
        "share": found["parameters"] / found["all_parameters"],
        "projections": found["projections"],
        "equal": equal,
        "computed_again": again,
        "refused": cache.refused,
    }


def installed(pipe: Any, **options: Any) -> ModulationCache:
    """A cache on a pipeline that has layers for it."""
    cache = omnireuse.install_modulation_cache(pipe, **options)
    assert cache is not None
    return cache


def measure_sizes(name: str, _options: argparse.Namespace) -> Row:
    """Weights and tables at true size."""
    made: Tiny = PIPELINES[name]()
    tables = []
    for guided in (False, True):
        cache = installed(made.pipe, release=None)
        made.run(steps=4, guided=guided)
        tables.append(cache.details()["num_bytes"])
        names = {re.sub(r"\d+", "#", each.name) for own in cache.tables for each in own.projections}
        cache.close()
    kind = type(denoiser(made.pipe))
    with torch.device("meta"):
        model = kind(**SIZED[name])
    found = [each for at, each in model.named_modules() if re.sub(r"\d+", "#", at) in names]
    # What begins with an input of its own and is small is left alone at true size.
    least = max(sum(p.numel() for p in each.parameters()) for each in found) / 100
    found = [each for each in found if sum(p.numel() for p in each.parameters()) >= least]
    weights = sum(p.numel() for each in found for p in each.parameters())
    row = sum(each.out_features for each in found) * 2
    return {
        "class": kind.__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "released": weights,
        "bytes": {"bfloat16": 2 * weights, "int8": weights},
        "tables": {str(steps): steps * row for steps in STEPS},
        "guided": tables[1] / tables[0],
    }


def two_blocks(name: str) -> Sampler:
    """Two blocks of true width, in bfloat16; few tokens, as a step's time is not the question."""
    model = MODELS[name]
    depth = {"num_layers": 1, "num_single_layers": 1} if name == "flux.1" else {"num_layers": 2}
    model = replace(model, true=model.true | depth, latents=(1, 4, 64), text=(4, model.text[1]), guidance=None)
    return Sampler(model, tiny=False, device=torch.device("cpu"), dtype=torch.bfloat16)


def private_bytes() -> int:
    """Memory of this process that no file backs."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"))
    return int(found[1]) * 1024 if found else 0


def median(seconds: list[float]) -> float:
    """The median, in milliseconds."""
    return round(1000 * statistics.median(seconds), 1)


class Peak(threading.Thread):
    """The most private memory within a `with` block, looked at every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.num_bytes, self._ended = 0, threading.Event()

    def run(self) -> None:
        """Look until the end."""
        while not self._ended.wait(0.005):
            self.num_bytes = max(self.num_bytes, private_bytes())

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


def measure_blocks(name: str, options: argparse.Namespace) -> Row:
    """Memory, and processor time in pairs: of a picture and of one with a new schedule, with the cache and without."""
    plain, row = two_blocks(name), {}
    for release in (None, "disk"):
        before = private_bytes()
        sampler = two_blocks(name)
        full = private_bytes() - before
        cache = installed(sampler, release=release)
        for _ in range(2):
            sampler.timed(options.steps)
        gc.collect()
        held = private_bytes() - before
        both = (plain, sampler)
        again = [[picture_seconds(each, _sigmas(options.steps, 0)) for each in both] for _ in range(PAIRS + 1)][1:]
        with Peak() as peak:
            new = [[picture_seconds(each, _sigmas(options.steps, which)) for each in both] for which in (1, 2)]
        final = [each.run(options.steps, lambda _step: nullcontext()) for each in both]
        row[str(release)] = {
            "step_ms": [median([seconds[way] / options.steps for seconds in again]) for way in (0, 1)],
            "again": [round(cached / without, 3) for without, cached in again],
            "new_schedule": [round(cached / without, 3) for without, cached in new],
            "memory": {"without": full, "held": held, "peak": peak.num_bytes - before},
            "tables": cache.details()["num_bytes"],
            "released": cache.details()["released_bytes"],
            "brought_in": cache.details()["brought_in"],
            "projections": cache.details()["projections"],
            "equal": torch.equal(*final),
        }
        cache.close()
        del sampler, both, cache
        gc.collect()
    return row


def _sigmas(steps: int, which: int) -> list[float]:
    """A schedule that shares no step with another `which` below 9."""
    return [1 - (step + which / 10 + 0.05) / steps for step in range(steps)]


def picture_seconds(sampler: Sampler, sigmas: list[float]) -> float:
    """Processor time of a picture: others use the machine as well."""
    began = time.process_time()
    sampler.scheduler.set_timesteps(sigmas=sigmas)
    sampler.denoise(sampler.scheduler.timesteps, lambda _step: nullcontext())
    return time.process_time() - began


def measure_groups(name: str, options: argparse.Namespace) -> Row:
    """Time of a step with group offload by block, in pairs, and the bytes that it streams. Time is the processor's and
    that of the link, which nobody sits out: others use the machine as well."""
    onload, streamed, waited = ModuleGroup.onload_, 0, 0.0

    def throttled(group: Any) -> None:
        """Copies, and what the link would have taken longer."""
        nonlocal streamed, waited
        began = time.process_time()
        parameters = [p for module in group.modules for p in module.parameters()] + list(group.parameters)
        num_bytes = sum(each.data.clone().nbytes for each in parameters)
        onload(group)
        streamed += num_bytes
        waited += max(0.0, num_bytes / (options.link * 1e9) - (time.process_time() - began))

    samplers = {way: two_blocks(name) for way in ("without", "cpu")}
    cpu = torch.device("cpu")
    for each in samplers.values():
        each.transformer.enable_group_offload(cpu, cpu, "block_level", num_blocks_per_group=1)
    cache = installed(samplers["cpu"], release="cpu")
    row: Row = {"link": options.link} | {way: {"step_ms": []} for way in samplers}
    for _ in range(2):
        samplers["cpu"].timed(options.steps)
    with mock.patch.object(ModuleGroup, "onload_", throttled):
        for _ in range(PAIRS):
            for way, sampler in samplers.items():
                streamed = 0
                row[way]["step_ms"] += [
                    round(1000 * each) for each in sampler.timed(options.steps, lambda: time.process_time() + waited)
                ]
                row[way]["streamed"] = streamed / options.steps
    row["cpu"]["released"] = cache.details()["released_bytes"]
    cache.close()
    return row


def measure_gpu(name: str, options: argparse.Namespace) -> Row:
    """Qwen-Image of true size with random weights: peak memory, time a step, first picture and new schedule."""
    device = torch.device("cuda")
    row: Row = {"device": name_of(device)}
    for release in ("without", None, "cpu", "disk"):
        sampler = Sampler(MODELS[name], tiny=False, device=device, dtype=torch.bfloat16)
        cache = None if release == "without" else installed(sampler, release=release)
        first = sum(sampler.timed(options.steps))
        sampler.timed(options.steps)
        torch.cuda.reset_peak_memory_stats()
        row[str(release)] = {
            "first_ms": median([first]),
            "step_ms": median(sampler.timed(options.steps)),
            "new_schedule_ms": median([sum(sampler.timed(options.steps + 1))]),
            "peak": torch.cuda.max_memory_allocated(),
        }
        if cache is not None:
            cache.close()
        del sampler, cache
        gc.collect()
        torch.cuda.empty_cache()
    return row


def show(rows: list[Row], console: Console) -> None:
    """Print the tables."""
    of = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    table = new_table("Tiny pipelines", "pipeline", "weights with a table", "bits equal", "computed again")
    for row in of["pipelines"]:
        said = row["refused"] and "refused: rows exceed the weights"
        table.add_row(row["model"], said or f"{row['share']:.0%}", str(all(row["equal"])), str(row["computed_again"]))
    console.print(table)
    steps = [f"{each} steps" for each in STEPS]
    table = new_table("True sizes, bfloat16", "class", "B weights", "leave", "GiB", "int8 GiB", *steps, "guided")
    for row in of["sizes"]:
        table.add_row(
            row["class"],
            f"{row['parameters'] / 1e9:.1f}",
            f"{row['released'] / row['parameters']:.0%}",
            *(f"{row['bytes'][dtype] / GIB:.1f}" for dtype in ("bfloat16", "int8")),
            *(f"{row['tables'][str(each)] / 2**20:.0f} MiB" for each in STEPS),
            f"× {row['guided']:.0f}",
        )
    console.print(table)
    headings = ("step, of without", "new schedule", "GiB without", "held", "peak of a new schedule", "bits equal")
    table = new_table("Two blocks on the CPU", "model", "release", *headings)
    for row in of["blocks"]:
        for way in ("None", "disk"):
            each = row[way]
            gib = (f"{each['memory'][when] / GIB:.2f}" for when in ("without", "held", "peak"))
            ratios = (f"{statistics.median(each[which]):.2f} ({spread(each[which])})" for which in RATIOS)
            table.add_row(row["model"], way, *ratios, *gib, str(each["equal"]))
    console.print(table)
    table = new_table("Group offload", "model", "way", "ms a step", "least to most", "GiB streamed a step")
    for row in of["groups"]:
        for way in ("without", "cpu"):
            seconds = row[way]["step_ms"]
            cells = f"{statistics.median(seconds):.0f}", f"{min(seconds)} to {max(seconds)}"
            table.add_row(row["model"], way, *cells, f"{row[way]['streamed'] / GIB:.2f}")
    console.print(table)


def spread(ratios: list[float]) -> str:
    """The least and the most."""
    return f"{min(ratios):.2f} to {max(ratios):.2f}"
