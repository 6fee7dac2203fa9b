"""What fitted weights owe to the outputs they sum, to the branches told apart, and to the prompts they are fitted on.

    python -m bench weights [--case shapes-flux] [--steps 28] [--guidance 6] [--out out/bench]

Half of the held-out captions to fit on, half to judge; schedules spread as the default is, so that nothing is searched.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

import omnireuse
from bench._common import new_table, write_record
from omnireuse.calibration.runner import PipelineRunner
from omnireuse.planning import fit
from omnireuse.planning.path import Path as RunPath
from omnireuse.policies import FixedSchedule
from omnireuse.tuning.trials import MeasuredCall
from omnireuse_lab.closeness import bootstrap
from omnireuse_lab.record import environment
from reference.case import CLIPS, IMAGES
from reference.workload import load_quietly

CASES = {case.name: case for case in (IMAGES, CLIPS)}
POWER = 1.7
SEED = 7000
"""Of captions and noise: neither those of the profiles nor those of the comparison."""
KEPT = (1, 2, 3, 4, 5)


def main(arguments: list[str] | None = None) -> None:
    """Run and write ``weights.json`` and a table."""
    parser = argparse.ArgumentParser(prog="python -m bench weights", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", choices=CASES, default=IMAGES.name)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--guidance", type=float, default=6.0)
    parser.add_argument("--computed", type=int, nargs="+", default=[14, 9])
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args(arguments)
    rows = Bench(options).rows(options.computed)
    command = f"python -m bench weights --case {options.case} --steps {options.steps} --guidance {options.guidance:g}"
    show(rows, Console())
    write_record({"command": command, "environment": environment(), "rows": rows}, options.out, "weights")


class Bench:
    """One pipeline, captions to fit on and captions to judge."""

    def __init__(self, options: argparse.Namespace) -> None:
        case = CASES[options.case]
        guided = {case.guidance: options.guidance, **({} if options.guidance > 1 else {"negative_prompt": None})}
        call = {**case.sampling, **guided, "num_inference_steps": options.steps}
        prompts = list(map(case.caption, case.held_out(options.prompts, seed=SEED)))
        self._pipeline, self._steps = load_quietly(case, case.find(None)), options.steps
        self._runner = PipelineRunner(self._pipeline, prompts, seed=SEED, call=call)
        half = len(prompts) // 2
        self._fitted, self._judged = range(half), range(half, len(prompts))
        self._full = {places: self._runner.full_run(places, record=True) for places in (self._fitted, self._judged)}

    def rows(self, budgets: Sequence[int]) -> list[dict[str, Any]]:
        """PSNR of every way to fit, on the captions that were not fitted on."""
        prompts = len(self._fitted)
        ways = [(kept, apart, prompts) for kept in KEPT for apart in (False, True)]
        ways += [(fit.KEPT, True, fewer) for fewer in (max(prompts // 6, 1), max(prompts // 3, 1))]
        return [
            {
                "computed_steps": count,
                "kept": kept,
                "branches_apart": apart,
                "fitted_on": fewer,
                **self._row(count, kept, apart, fewer),
            }
            for count, kept, apart, fewer in track([(count, *way) for count in budgets for way in ways], "weights")
        ]

    def _row(self, count: int, kept: int, apart: bool, prompts: int) -> dict[str, Any]:
        steps = tuple(sorted(FixedSchedule(num_computed=count, power=POWER).schedule(self._steps)))
        policy = omnireuse.Steps(steps=steps, compute_last=steps[-1] == self._steps - 1)
        fitted = self._fit(policy, kept, apart, range(prompts))
        strategy = omnireuse.Strategy.where_it_fits(policy, fitted)
        psnr = self._runner.score(strategy, self._judged, self._full[self._judged].pictures)
        mean = bootstrap(psnr)
        return {"psnr": mean.mean, "low": mean.low, "high": mean.high, "worst": min(psnr), "branches": fitted.branches}

    def _fit(self, policy: omnireuse.Steps, kept: int, apart: bool, batch: range) -> omnireuse.Fitted:
        found = self._full[self._fitted]
        assert found.full is not None
        path = RunPath(
            latents=[latents[: len(batch)] for latents in found.full.path.latents],
            shares=found.full.path.shares if apart else (1.0,),
        )
        weights = fit.WeightFit(policy.steps, self._steps, kept=kept)
        call = MeasuredCall(replay=batch, full=replace(found.full, path=path))
        self._runner.lead(call, weights, policy)
        return omnireuse.Fitted(coordinates=found.coordinates, weights=weights.weights, computed=policy.steps)


def show(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """One line a way."""
    table = new_table(
        "fitted weights", "branches", "computed", "outputs", "fitted on", "PSNR dB", "low", "high", "worst"
    )
    for row in rows:
        table.add_row(
            "apart" if row["branches"] > 1 else "one set",
            *(str(row[key]) for key in ("computed_steps", "kept", "fitted_on")),
            *(f"{row[key]:.1f}" for key in ("psnr", "low", "high", "worst")),
        )
    console.print(table)


if __name__ == "__main__":
    main()
