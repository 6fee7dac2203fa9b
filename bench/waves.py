"""Continuous batching with reuse: throughput and rows of each wave, in vllm-omni's own scheduler, with a cost model.

    scripts/vllm_omni_venv.sh VENV && VENV/bin/python -W ignore -m bench waves

Requests arrive at random (Poisson) and run in waves. A wave costs `per_wave` once and `per_row` for each row that
computes; forecast rows cost `FORECAST` of a computed one. Variants: no cache; a cache whose requests all compute in the
same waves (every second wave of the engine); reuse with each request's own schedule.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engines.tests.hosts.vllm_omni import cpu_platform
from omnireuse.errors import StateError
from omnireuse.policies import Spread

RESULTS = Path(__file__).parent / "results" / "waves.json"
STEPS, MOST_RUNNING, FORECAST = (20, 28, 40), 8, 0.01
LOADS = (0.3, 0.6, 0.9, 1.2, 2.0)
"""Arrivals, as a share of what the engine serves at most without a cache."""
SHAPES = {"saturated": 0.1, "half": 1.0, "launch": 4.0}
"""Cost of a wave beside its rows, in rows: a large picture fills the device alone, a small one does not."""
VARIANTS = ("none", "same waves", "own")


@dataclass
class Job:
    """One request of the simulation."""

    number: int
    arrival: float
    total: int
    wave: int = -1
    step: int = 0
    steps: frozenset[int] = frozenset()


@dataclass
class Measured:
    """What one simulation came to."""

    latencies: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    end: float = 0.0

    def figures(self) -> dict[str, float]:
        """The figures that are compared, times in the unit of one row."""
        computing = [rows for rows in self.rows if rows]
        return {
            "requests_per_time": len(self.latencies) / self.end,
            "median_latency": statistics.median(self.latencies),
            "rows_of_a_computing_wave": statistics.mean(computing),
            "waves_without_computation": 1 - len(computing) / len(self.rows),
        }


def arrivals(load: float, per_wave: float, count: int, seed: int) -> Iterator[Job]:
    """Poisson arrivals of requests with the usual numbers of steps."""
    rng = random.Random(seed)
    served = MOST_RUNNING / (statistics.mean(STEPS) * (per_wave + MOST_RUNNING))
    clock = 0.0
    for number in range(count):
        clock += rng.expovariate(load * served)
        yield Job(number, clock, rng.choice(STEPS))


def simulate(variant: str, load: float, per_wave: float, count: int, seed: int) -> Measured:
    """Run the engine's scheduler over all requests."""
    from vllm_omni.diffusion.sched.step_scheduler import StepScheduler

    scheduler = StepScheduler()
    scheduler.initialize(SimpleNamespace(max_num_seqs=MOST_RUNNING))
    policy = Spread(speedup=2)
    waiting, jobs = list(arrivals(load, per_wave, count, seed)), {}
    clock, wave, measured = 0.0, 0, Measured()
    while waiting or jobs:
        if not jobs and waiting[0].arrival > clock:
            clock = waiting[0].arrival
        while waiting and waiting[0].arrival <= clock:
            job = waiting.pop(0)
            jobs[str(job.number)] = job
            scheduler.add_request(_request(job))
        scheduled = scheduler.schedule()
        computed = 0
        for name in scheduled.scheduled_request_ids:
            job = jobs[name]
            if job.wave < 0:
                job.wave = wave
                job.steps = policy.schedule(job.total)
            computed += _computes(variant, job, wave)
        forecast = len(scheduled.scheduled_request_ids) - computed
        clock += (per_wave + computed if computed else 0.0) + FORECAST * forecast
        measured.rows.append(computed)
        wave += 1
        _advance(scheduler, scheduled, jobs, clock, measured)
    measured.end = clock
    return measured


def _computes(variant: str, job: Job, wave: int) -> bool:
    if variant == "none" or job.step in (0, job.total - 1):
        return True
    return wave % 2 == 0 if variant == "same waves" else job.step in job.steps


def _advance(scheduler: Any, scheduled: Any, jobs: dict[str, Job], clock: float, measured: Measured) -> None:
    from vllm_omni.diffusion.data import DiffusionOutput
    from vllm_omni.diffusion.worker.utils import BatchRunnerOutput, RunnerOutput

    outputs = []
    for name in scheduled.scheduled_request_ids:
        jobs[name].step += 1
        is_done = jobs[name].step == jobs[name].total
        result = DiffusionOutput() if is_done else None
        outputs.append(RunnerOutput(request_id=name, step_index=jobs[name].step, finished=is_done, result=result))
    scheduler.update_from_output(scheduled, BatchRunnerOutput.from_list(outputs))
    for output in outputs:
        if output.finished:
            measured.latencies.append(clock - jobs.pop(output.request_id).arrival)
            scheduler.pop_request_state(output.request_id)


def _request(job: Job) -> Any:
    from vllm_omni.diffusion.request import OmniDiffusionRequest
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    sampling = OmniDiffusionSamplingParams(num_inference_steps=job.total, height=64, width=64)
    return OmniDiffusionRequest(prompt="a", request_id=str(job.number), sampling_params=sampling)


def over_seeds(make: Callable[[int], Measured], seeds: int) -> dict[str, dict[str, float]]:
    """Mean and spread of each figure over random arrivals."""
    figures = [make(seed).figures() for seed in range(seeds)]
    return {
        name: {"mean": statistics.mean(values), "spread": statistics.stdev(values)}
        for name in figures[0]
        for values in [[each[name] for each in figures]]
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure all variants, print a table and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench waves", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("vllm_omni") is None:
        raise StateError("waves: needs vllm-omni's scheduler; scripts/vllm_omni_venv.sh builds an environment with it")
    cpu_platform.install(Path(tempfile.mkdtemp()))
    results: dict[str, Any] = {"requests": options.requests, "seeds": options.seeds, "most_running": MOST_RUNNING}
    print("device      load  variant        requests/time (x none)   latency (x none)   rows/wave  idle waves")
    for shape, per_wave in SHAPES.items():
        for load in LOADS:
            base: dict[str, dict[str, float]] = {}
            for variant in VARIANTS:
                found = over_seeds(partial(simulate, variant, load, per_wave, options.requests), options.seeds)
                base = base or found
                results.setdefault(shape, {}).setdefault(str(load), {})[variant] = found
                ratio = found["requests_per_time"]["mean"] / base["requests_per_time"]["mean"]
                waits = found["median_latency"]["mean"] / base["median_latency"]["mean"]
                rows, idle = found["rows_of_a_computing_wave"]["mean"], found["waves_without_computation"]["mean"]
                print(f"{shape:10}  {load:4}  {variant:13}  {ratio:21.2f}  {waits:17.2f}  {rows:9.2f}  {idle:9.0%}")
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
