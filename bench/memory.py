"""Bytes that reuse keeps at true size, operations of a reused step, and how often the host reads the device. Needs
neither a GPU nor memory.

    python -m bench memory [--models flux.1 wan2.1-14b wan2.1-14b-720p qwen-image] [--steps 8] [--whole]

Tensors of true shapes without data (`bench/_fake_device.py`), in bfloat16. Two blocks of a model stand for all of
them, for nothing that is kept depends on their number; `--whole` takes all. A read counts where a value or a copy goes
from the device to the host; the noise levels of a run, which are read once, are left out. What is read is made up, so
the decisions of policies that measure say nothing. An operation that mixes devices, or needs what is not there, raises.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from rich.console import Console

import omnireuse
from bench._common import new_parser, new_table, no_warnings, write_record
from bench._fake_device import FakeSampler, HostReads, fake_device
from bench._true_size import MODELS
from omnireuse import (
    Blend,
    EveryNth,
    Fitted,
    Generation,
    MagCache,
    Polynomial,
    ResidualDiff,
    Steps,
    TeaCache,
)
from omnireuse.loop.strategy import REGIONS, Strategy
from omnireuse.noise.parametrization import NoiseLevel
from omnireuse.noise.schedulers import noise_levels
from omnireuse_lab.record import environment

WAN = MODELS["wan2.1-14b"]
SIZES = MODELS | {"wan2.1-14b-720p": replace(WAN, latents=(1, 16, 21, 90, 160))}
SHALLOW = {"flux.1": {"num_layers": 1, "num_single_layers": 1}}
"""Fewer blocks, at the true width; two in one list where a model is not named."""
HALF = EveryNth(every=2)
REQUESTS = 4
"""In a wave."""


def fitted(steps: int) -> Fitted:
    """Made-up weights of the last three outputs, as a profile or tuning has them."""
    computed = tuple(step for step in range(steps) if step % 2 == 0 or step == steps - 1)
    weights = tuple(() if step < 3 and step in computed else (1.5, -0.6, 0.1)[: step // 2 + 1] for step in range(steps))
    return Fitted(
        coordinates=tuple(level.coordinate for level in schedule(steps)), weights=(weights,), computed=computed
    )


def schedule(steps: int) -> list[NoiseLevel]:
    """The noise levels of the samplers here."""
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(steps)
    return noise_levels(scheduler)


def choices(steps: int) -> dict[str, dict[str, Any]]:
    """What is measured, by name: arguments of `enable`."""
    plan = fitted(steps)
    return {
        "default, speedup=2": {"speedup": 2},
        "tolerance=0.05": {"tolerance": 0.05},
        "tuned plan": {"policy": Steps(steps=plan.computed), "forecaster": plan},
        **{f"region {region}": {"policy": HALF, "forecaster": Blend(), "region": region} for region in REGIONS},
        "TeaCache": {"policy": TeaCache(rel_l1_thresh=0.3), "region": "blocks"},
        "MagCache": {"policy": MagCache(ratios=(1.0,) * steps), "region": "blocks"},
        "DBCache": {"policy": ResidualDiff(residual_diff_threshold=0.3, max_warmup_steps=2), "region": "tail"},
        "TaylorSeer, order 2": {"policy": HALF, "forecaster": Polynomial(order=2), "region": "blocks"},
        "EasyCache": {"policy": "easy_cache"},
    }


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``memory.json`` and a table."""
    parser = new_parser("memory", __doc__)
    parser.add_argument("--models", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--whole", action="store_true", help="all blocks of each model; minutes a model")
    options = parser.parse_args(arguments)
    command = f"python -m bench memory --models {' '.join(options.models)} --steps {options.steps}"
    record: dict[str, Any] = {
        "command": command + (" --whole" if options.whole else ""),
        "environment": environment(),
        "models": {},
    }
    for name in options.models:
        with no_warnings():
            record["models"][name] = measured(name, options.steps, whole=options.whole)
        write_record(record, options.out, "memory", quiet=name != options.models[-1])
    show(record["models"], Console())


def measured(name: str, steps: int, *, whole: bool = False) -> dict[str, dict[str, float]]:
    """Every choice on one model: bytes kept by a run at most, decisions, and reads of the host in a run."""
    model, asked, levels = SIZES[name], choices(steps), schedule(steps)
    if not whole:
        model = replace(model, true=model.true | SHALLOW.get(name, {"num_layers": 2}))
    with fake_device() as device:
        sampler = FakeSampler(model, tiny=False, device=device, dtype=torch.bfloat16)
        found = {label: of_run(sampler, steps, choice) for label, choice in asked.items()}
        waves = of_waves(model.latents, device, levels)
    return found | {f"wave of {REQUESTS}": waves}


def of_run(sampler: FakeSampler, steps: int, choice: Mapping[str, Any]) -> dict[str, float]:
    """One run of a choice; operations are those of a reused step, the scheduler's among them."""
    reads = HostReads()
    operations: list[int] = []

    @contextmanager
    def around(_step: int) -> Iterator[None]:
        before = reads.operations
        yield
        operations.append(reads.operations - before)

    with omnireuse.enable(sampler, **choice) as handle, reads:
        sampler.run(steps, around)
    summary = handle.summary()
    computed = {event.step for event in handle.events if not event.reused}
    return {
        "operations": statistics.median(operations[step] for step in range(steps) if step not in computed),
        "kept_bytes": summary.kept_bytes,
        "decisions": summary.calls,
        "reused": summary.reused_calls,
        "reads": reads.count,
    }


def of_waves(shape: tuple[int, ...], device: torch.device, levels: Sequence[NoiseLevel]) -> dict[str, float]:
    """Requests at different steps of a half schedule in one batch; bytes of one request."""
    strategy, reads, steps = Strategy(policy=HALF, forecaster=Blend()), HostReads(), len(levels)
    generations = [Generation(strategy, levels, total=steps) for _ in range(REQUESTS)]
    latents = torch.empty(shape, dtype=torch.bfloat16, device=device)
    kept = decisions = reused = 0
    with reads:
        for wave in range(steps + REQUESTS - 1):
            running = [each for number, each in enumerate(generations) if number <= wave < number + steps]
            chosen = [(each, each.computes(each.index, latents)) for each in running]
            for each, computes in chosen:
                each.use(torch.empty_like(latents) if computes else None, latents)
            kept = max(kept, *(each.kept_bytes for each in running))
            decisions, reused = decisions + len(chosen), reused + sum(not computes for _, computes in chosen)
    return {"kept_bytes": kept, "decisions": decisions, "reused": reused, "reads": reads.count}


def show(models: Mapping[str, Mapping[str, Mapping[str, float]]], console: Console) -> None:
    """MiB kept, and reads a decision."""
    table = new_table("MiB kept by a run (reads of the host a decision)", "", *models)
    for label in next(iter(models.values())):
        cells = [model[label] for model in models.values()]
        table.add_row(
            label,
            *(f"{each['kept_bytes'] / 2**20:.1f} ({each['reads'] / max(each['decisions'], 1):.1f})" for each in cells),
        )
    console.print(table)


if __name__ == "__main__":
    main()
