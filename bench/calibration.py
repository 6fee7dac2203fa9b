"""What a calibration reaches for the full runs it spends, beside the committed profiles of a long search.

    python -m bench calibration [--case shapes-flux …] [--guidance 6 1] [--prompts 24] [--judged 24] [--out FOLDER]
    python -m bench calibration --plot

Captions to calibrate on, and captions to judge on that no search saw. Writes ``calibration.json`` and
draws ``docs/images/calibration.png`` from it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import omnireuse
from bench._common import write_record
from omnireuse.calibration.runner import PipelineRunner
from omnireuse.profiles.profile import Plan, Profile
from omnireuse_lab.closeness import bootstrap
from omnireuse_lab.record import environment
from reference.case import CLIPS, IMAGES
from reference.workload import load_quietly

CASES = {case.name: case for case in (IMAGES, CLIPS)}
STEPS, BUDGETS = 28, [7, 9, 14]
SEED, SEED_OF_JUDGED = 11_000, 12_000
"""Of captions and noise."""
SETTINGS = (
    {"fit_prompts": 5},
    {"fit_prompts": 16},
)
"""The default first."""
BATCH = 5
"""Prompts in a call: the default's trials take one call."""


def main(arguments: list[str] | None = None) -> None:
    """Run and write, or draw what was written."""
    parser = argparse.ArgumentParser(prog="python -m bench calibration", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--guidance", type=float, nargs="+", default=[6.0, 1.0])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--judged", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path("bench/results"))
    parser.add_argument("--plot", action="store_true", help="draw the figure only")
    options = parser.parse_args(arguments)
    file = options.out / "calibration.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.is_file() else []
    if not options.plot:
        torch.set_num_threads(1)
        for name in options.case:
            for guidance in options.guidance:
                # Cases that are not asked for stay as they were.
                rows = [row for row in rows if (row["case"], row["guidance"]) != (name, guidance)]
                rows += case_rows(name, guidance, options.prompts, options.judged)
                command = f"python -m bench calibration --prompts {options.prompts} --judged {options.judged}"
                write_record({"command": command, "environment": environment(), "rows": rows}, options.out, file.stem)
    draw(rows, Path("docs/images/calibration.png"))


def case_rows(name: str, guidance: float, prompts: int, judged: int) -> list[dict[str, Any]]:
    """One row for each setting and budget: cost of the whole calibration, and PSNR on the judged captions beside that
    of the committed profile on the same captions."""
    case = CASES[name]
    branches = {case.guidance: guidance, **({} if guidance > 1 else {"negative_prompt": None})}
    call = {**case.sampling, **branches}
    del call["num_inference_steps"]
    full_call = {**call, "num_inference_steps": STEPS}
    pipeline = load_quietly(case, case.find(None))

    others = list(map(case.caption, case.held_out(judged, seed=SEED_OF_JUDGED)))
    judge = PipelineRunner(pipeline, others, call=full_call, seed=SEED_OF_JUDGED, batch_size=judged)
    full = judge.full_run(range(judged)).pictures

    def scores(plan: Plan, coordinates: tuple[float, ...]) -> list[float]:
        return judge.score(plan.strategy(coordinates), range(judged), full)

    kind = "guided" if guidance > 1 else "unguided"
    long = Profile.load(case.find(None) / "profiles" / f"{name}-{STEPS}-{kind}.json")
    reached = {budget: scores(long.plans[budget], long.coordinates) for budget in BUDGETS}
    captions = list(map(case.caption, case.held_out(prompts, seed=SEED)))
    rows = []
    for setting in SETTINGS:
        found = omnireuse.calibrate(
            pipeline,
            captions,
            steps=STEPS,
            computed_steps=BUDGETS,
            batch_size=BATCH,
            seed=SEED,
            progress=False,
            **{**setting, **call},
        )
        for budget in BUDGETS:
            plan = found.plans[budget]
            psnr = scores(plan, found.coordinates)
            gains = [new - old for new, old in zip(psnr, reached[budget], strict=True)]
            mean, gain = bootstrap(psnr), bootstrap(gains)
            rows.append(
                {
                    "case": name,
                    "guidance": guidance,
                    **setting,
                    "computed_steps": budget,
                    "steps": plan.steps,
                    "runs": found.cost_in_runs,
                    "psnr": mean.mean,
                    "long": sum(reached[budget]) / judged,
                    "long_runs": long.cost_in_runs,
                    "gain": gain.mean,
                    "low": gain.low,
                    "high": gain.high,
                }
            )
            print(*rows[-1].values(), flush=True)
    return rows


def draw(rows: Sequence[dict[str, Any]], target: Path) -> None:
    """PSNR beside the long search's, against the full runs spent."""
    from reference.figures import panels_of

    cases = list(dict.fromkeys((row["case"], row["guidance"]) for row in rows))
    figure, axes = panels_of(len(cases), sharey=True)
    for axis, (name, guidance) in zip(axes, cases, strict=True):
        for budget in BUDGETS:
            line = [
                row for row in rows if (row["case"], row["guidance"], row["computed_steps"]) == (name, guidance, budget)
            ]
            errors = [[row["gain"] - row["low"] for row in line], [row["high"] - row["gain"] for row in line]]
            label = f"{budget} of {STEPS} steps"
            axis.errorbar([row["runs"] for row in line], [row["gain"] for row in line], errors, marker="o", label=label)
        axis.axhline(0, color="black", linewidth=0.8)
        long_runs = next(row["long_runs"] for row in rows if (row["case"], row["guidance"]) == (name, guidance))
        axis.set_title(
            f"{name}, {f'guidance {guidance:g}' if guidance > 1 else 'no guidance'}\nlong search: {long_runs:.0f} runs",
            fontsize=10,
        )
        axis.set_xlabel("full runs spent")
    figure.supylabel("PSNR − long search's, dB", fontsize=10)
    axes[0].legend()
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    main()
