"""What to forecast with where a profile has no plan for the number of steps that is asked for.

    python -m bench between [--case shapes-flux …] [--prompts 24] [--out out/bench]

The default's steps compute, and either `Blend` or the profile's weights, carried over to these steps, forecast the
others. PSNR in dB to the full run of 28 steps for each held-out caption, between and beyond the plans. The profiles are
those committed; on the pipelines that have none, one for 14, 9 and 7 steps, calibrated on 24 captions.

Rows are written as soon as they are known, and a run that was stopped goes on where it was: delete the file to begin
anew.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console

import omnireuse
from bench._common import new_table
from bench._resumable import Row, Rows, parser_of, record_of
from omnireuse import Profile
from omnireuse.arguments.targets import SPREAD
from omnireuse.forecasters import Blend, Fitted, Forecaster
from omnireuse.forecasters.carrying import carried_weights
from omnireuse.handle import Handle
from omnireuse.loop.strategy import Strategy
from omnireuse.pipelines.closeness import psnr
from omnireuse.policies import Spread
from reference.case import CASES, FACES, Case

SEED, STEPS = 7100, 28
BUDGETS = (7, 9, 14)
COUNTS = (6, 8, 10, 12, 13, 16, 18, 20, 23)
"""Numbers of computed steps without a plan."""


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing; write ``between.json`` and show a table."""
    parser = parser_of("between", __doc__, CASES, prompts=24, guidance=False)
    parser.set_defaults(case=[name for name in CASES if name != FACES.name])
    show(record_of("between", parser.parse_args(arguments), measure)["rows"], Console())


def measure(rows: Rows, options: argparse.Namespace) -> None:
    """Run what is missing."""
    for name, guided in itertools.product(options.case, (True, False)):
        if not rows.like({"case": name, "guided": guided}):
            rows.add(*measured(CASES[name], options.prompts, guided=guided))


def measured(case: Case, prompts: int, *, guided: bool) -> list[Row]:
    """Both ways at each number of steps."""
    pipeline = case.load()
    pipeline.set_progress_bar_config(disable=True)
    profile = _profile(case, pipeline, guided=guided)
    captions = [case.caption(scene) for scene in case.held_out(prompts, seed=SEED)]
    call: Row = {"num_inference_steps": STEPS} | ({} if guided else {case.guidance: 1.0})

    def make() -> Any:
        return case.generate(pipeline, captions, range(SEED, SEED + prompts), **call)

    full, rows = make(), []
    for count in (each for each in COUNTS if each not in profile.plans):
        is_between = min(profile.plans) < count < max(profile.plans)
        row: Row = {"case": case.name, "guided": guided, "computed": count, "between": is_between}
        policy = Spread(num_computed=count, **SPREAD)
        ways: dict[str, Forecaster] = {"blend": Blend(), "carried": carried(profile, policy)}
        for way, forecaster in ways.items():
            with Handle(pipeline, Strategy.where_it_fits(policy, forecaster), name=way):
                row[way] = [round(min(psnr(*pair), 100.0), 2) for pair in zip(make(), full, strict=True)]
        rows.append(row)
    return rows


def carried(profile: Profile, policy: Spread) -> Fitted:
    """The weights of all plans, carried over to the steps that the policy computes."""
    computed, plans = tuple(sorted(policy.schedule(STEPS, profile.coordinates))), list(profile.plans.values())
    weights = []
    for branch in range(len(plans[0].weights)):
        fits = [(plan.steps, plan.weights[branch]) for plan in plans if len(plan.weights) == len(plans[0].weights)]
        found = carried_weights(fits, profile.coordinates, profile.coordinates, computed)
        assert found is not None, "each plan has gaps"
        weights.append(found)
    return Fitted(coordinates=profile.coordinates, weights=tuple(weights), computed=computed)


def _profile(case: Case, pipeline: Any, *, guided: bool) -> Profile:
    path = case.find(None) / "profiles" / f"{case.name}-{STEPS}-{'guided' if guided else 'unguided'}.json"
    if path.is_file():
        return Profile.load(path)
    call = {name: value for name, value in case.sampling.items() if name != "num_inference_steps"}
    captions = [case.caption(scene) for scene in case.held_out(24, seed=SEED + 1)]
    return omnireuse.calibrate(
        pipeline,
        captions,
        steps=STEPS,
        computed_steps=BUDGETS,
        seed=SEED,
        progress=False,
        **call | ({} if guided else {case.guidance: 1.0}),
    )


def show(rows: Sequence[Row], console: Console) -> None:
    """One line a case and number, then the mean difference."""
    table = new_table("Without a plan, PSNR in dB", "case", "computed", "blend", "carried weights", "difference")
    gains: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        gain = [ours - theirs for ours, theirs in zip(row["carried"], row["blend"], strict=True)]
        gains[row["between"]].append(statistics.fmean(gain))
        table.add_row(
            f"{row['case']}, {'guided' if row['guided'] else 'no guidance'}",
            f"{row['computed']} of {STEPS}{'' if row['between'] else ', beyond'}",
            f"{statistics.fmean(row['blend']):.1f}",
            f"{statistics.fmean(row['carried']):.1f}",
            f"{statistics.fmean(gain):+.1f} ± {statistics.stdev(gain) / len(gain) ** 0.5:.1f}",
        )
    console.print(table)
    for place, those in (("between", gains[True]), ("beyond", gains[False])):
        if those:
            better = sum(gain > 0 for gain in those)
            console.print(
                f"carried weights {place} plans: {statistics.fmean(those):+.1f} dB on average, better in {better} of "
                f"{len(those)}"
            )


if __name__ == "__main__":
    main()
