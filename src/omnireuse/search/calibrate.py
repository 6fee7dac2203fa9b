"""``omnireuse.calibrate``: from a handful of full runs to the best schedule for every budget."""

from __future__ import annotations

import datetime
import hashlib
import logging
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from omnireuse.diffusion.calibration.profile import Plan, Profile, fingerprint
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.wishes import POWER
from omnireuse.errors import ConfigError
from omnireuse.search.candidate import FITTED, Candidate
from omnireuse.search.evaluator import Evaluator, Scores
from omnireuse.search.intervals import SLOPES, gap_costs
from omnireuse.search.judge import Judge
from omnireuse.search.paths import best_paths
from omnireuse.search.record import Distances
from omnireuse.search.refine import refine
from omnireuse.search.standing import Standing
from omnireuse.search.workers import InProcess

__all__ = ["BUDGETS", "calibrate"]

logger = logging.getLogger("omnireuse")

#: Steps over computed steps that a search serves where nobody says which.
BUDGETS = (1.5, 2.0, 2.5, 3.0, 4.0)


def calibrate(
    pipeline: Any,
    prompts: Sequence[str],
    *,
    steps: int = 28,
    computed_steps: Iterable[int] | None = None,
    held_out: float = 0.33,
    evaluations: int = 30,
    margin: float = 1.0,
    seconds: float | None = None,
    batch_size: int = 1,
    seed: int = 0,
    watch: Callable[[Standing], None] | None = None,
    **call: Any,
) -> Profile:
    """Search the best schedule for each budget of computed steps, on the pipeline's own runs.

    One full run a prompt tells how wrong every forecast over every gap would be; dynamic programming over those errors
    gives paths to start from; moves, judged on true runs, improve them. Each is tried with the forecasters that need no
    preparation and with weights that are fitted to it. What was found is then judged on prompts that the search has not
    seen. Region "step", so any pipeline is served.

    Args:
        pipeline: a diffusers pipeline that makes images or clips; nothing may be enabled on it.
        prompts: at least two, best a few dozen; the last of them are held out.
        steps: denoising steps of a run, ≥ 4.
        computed_steps: budgets to search for, each from 2 to `steps`; None for those of `BUDGETS`.
        held_out: share of the prompts that the search does not see, in (0, 1); at least one is.
        evaluations: schedules tried for each budget, each of which costs its share of a full run a prompt.
        margin: a schedule takes another's place where its mean gain over the same prompts exceeds so many of its
            standard errors, ≥ 0. With few prompts a search without margin finds what suits these prompts only.
        seconds: wall-clock budget for the search; what is found by then is returned.
        batch_size: prompts a call.
        seed: of the noise, and of the order in which moves are tried; the same seed finds the same profile.
        watch: told where the search stands whenever it has got on.
        call: whatever else the pipeline is to be called with, guidance above all.

    Returns:
        The profile. After an interrupt it holds what had been found, and says so in `complete`.

    Raises:
        ConfigError: too few prompts, or an argument out of range.
        StateError: reuse is enabled already, or a full run is not finite.
        KeyboardInterrupt: interrupted before anything was found.
    """
    budgets = _checked(prompts, steps, computed_steps, held_out, evaluations, batch_size, margin)
    begun = time.monotonic()
    deadline = None if seconds is None else begun + seconds
    for_search = len(prompts) - max(1, round(held_out * len(prompts)))
    if for_search == 1:
        logger.warning("calibrate: one prompt to search with cannot tell a gain from noise; give more prompts")
    judge = Judge(pipeline, prompts, first_seed=seed, call={"num_inference_steps": steps, **call})
    workers = InProcess(judge)
    searched = Evaluator(workers, range(for_search), batch_size=batch_size, steps=steps)
    unseen = Evaluator(workers, range(for_search, len(prompts)), batch_size=batch_size, steps=steps)
    # Every schedule of a budget costs the same.
    whole = len(prompts) + sum(
        budget / steps * (evaluations * for_search + len(prompts) - for_search) for budget in budgets
    )

    def tell(doing: str, done: int, total: int, best: float | None = None) -> None:
        if watch is not None:
            runs = searched.runs + unseen.runs
            left = max(0.0, whole - runs)
            seconds_left = (time.monotonic() - begun) / runs * left if runs else None
            watch(
                Standing(
                    doing=doing, done=done, total=total, best=best, runs=runs, runs_left=left, seconds_left=seconds_left
                )
            )

    def ran_in_full(count: int) -> None:
        tell("full runs", round(searched.runs + unseen.runs), len(prompts))

    recorded = searched.run_in_full(record=True, advance=ran_in_full)
    unseen.run_in_full(record=False, advance=ran_in_full)
    forecasters = (*SLOPES, FITTED) if searched.can_fit else SLOPES
    starts = _starts(recorded, budgets, steps, forecasters)
    best: dict[int, tuple[Candidate, Scores]] = {}
    complete = True
    try:
        for number, budget in enumerate(budgets):
            until = _share(deadline, len(budgets) - number)

            def late(until: float = until) -> bool:
                return time.monotonic() > until

            leaders = refine(
                searched,
                starts[budget],
                forecasters=forecasters,
                total=steps,
                evaluations=evaluations,
                margin=margin,
                rng=random.Random(seed),
                late=late,
            )
            for done, leader in enumerate(leaders, 1):
                best[budget] = leader
                tell(f"{budget} of {steps} steps", done, evaluations, statistics.fmean(leader[1]))
    except KeyboardInterrupt:
        if not best:
            raise
        complete = False
        logger.warning("interrupted: the profile holds the best schedules found so far")
    weights = searched.fitted([candidate for candidate, _ in best.values()])
    held_out_scores: dict[Candidate, Scores] = {}
    for candidate, scores in unseen.scores([candidate for candidate, _ in best.values()], weights):
        held_out_scores[candidate] = scores
        tell("held-out prompts", len(held_out_scores), len(best))
    plans = {
        budget: Plan(
            steps=candidate.steps,
            forecaster=candidate.forecaster,
            weights=weights[candidate].weights if candidate in weights else (),
            psnr=statistics.fmean(scores),
            held_out=held_out_scores[candidate],
        )
        for budget, (candidate, scores) in sorted(best.items())
    }
    model, digest, scheduler = fingerprint(pipeline)
    return Profile(
        model=model,
        config_digest=digest,
        scheduler=scheduler,
        num_inference_steps=steps,
        at=tuple(recorded[0].at.tolist()),
        call={name: repr(value) for name, value in call.items()},
        prompts_digest=hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16],
        num_prompts=(for_search, len(prompts) - for_search),
        seed=seed,
        created=datetime.date.today().isoformat(),
        versions={name: version(name) for name in ("omnireuse", "torch", "diffusers")},
        cost_in_runs=round(searched.runs + unseen.runs, 1),
        complete=complete,
        plans=plans,
    )


def _starts(
    recorded: Sequence[Distances], budgets: Sequence[int], steps: int, forecasters: Sequence[str]
) -> dict[int, list[Candidate]]:
    """What to begin from for each budget: the default spread, then the cheapest paths by the recorded errors."""
    distances = Distances(at=recorded[0].at, squared=np.concatenate([each.squared for each in recorded]))
    starts = {}
    for budget in budgets:
        known = tuple(sorted(FixedSchedule(num_computed=budget, power=POWER).computed_steps(steps)))
        starts[budget] = [Candidate(steps=known, forecaster=each) for each in ("blend", FITTED) if each in forecasters]
    for forecaster in SLOPES:
        paths = best_paths(gap_costs(distances, forecaster), max(budgets))
        for budget in budgets:
            if budget in paths:
                both = [each for each in (forecaster, FITTED) if each in forecasters]
                starts[budget] += [Candidate(steps=paths[budget], forecaster=each) for each in both]
    return starts


def _share(deadline: float | None, budgets: int) -> float:
    """When the next of so many budgets has had its part of what is left of the time."""
    now = time.monotonic()
    return math.inf if deadline is None else now + (deadline - now) / budgets


def _checked(
    prompts: Sequence[str],
    steps: int,
    computed_steps: Iterable[int] | None,
    held_out: float,
    evaluations: int,
    batch_size: int,
    margin: float,
) -> list[int]:
    if isinstance(prompts, str) or len(prompts) < 2:
        raise ConfigError(f"calibrate(prompts={prompts!r}): prompts must be a list of at least two, one is held out")
    for name, value, least in (("steps", steps, 4), ("evaluations", evaluations, 1), ("batch_size", batch_size, 1)):
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"calibrate({name}={value!r}): {name} must be a whole number of at least {least}")
    if not 0 < held_out < 1:
        raise ConfigError(f"calibrate(held_out={held_out!r}): held_out must be a share above 0 and below 1")
    if not 0 <= margin < math.inf:
        raise ConfigError(f"calibrate(margin={margin!r}): margin must be a finite number of at least 0")
    wanted = {int(steps / budget) for budget in BUDGETS} if computed_steps is None else set(computed_steps)
    for count in wanted:
        if not isinstance(count, int) or not 2 <= count <= steps:
            raise ConfigError(
                f"calibrate(computed_steps={count!r}): each must be a whole number from 2 to steps={steps}"
            )
    return sorted(max(count, 2) for count in wanted)
