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

from omnireuse.diffusion.calibration.profile import Plan, Profile, fingerprint
from omnireuse.diffusion.pipelines import enable
from omnireuse.diffusion.reuse.policies import FixedSchedule
from omnireuse.diffusion.wishes import POWER
from omnireuse.errors import ConfigError
from omnireuse.search.intervals import SLOPES, gap_costs
from omnireuse.search.judge import Judge
from omnireuse.search.paths import best_paths
from omnireuse.search.record import DistanceRecorder
from omnireuse.search.refine import Candidate, refine

__all__ = ["BUDGETS", "calibrate"]

logger = logging.getLogger("omnireuse")

#: Steps over computed steps that a search serves where nobody says which.
BUDGETS = (1.5, 2.0, 2.5, 3.0, 4.0)
EMPHASES = (0.0, -0.5, 0.5)


def calibrate(
    pipeline: Any,
    prompts: Sequence[str],
    *,
    steps: int = 28,
    computed_steps: Iterable[int] | None = None,
    held_out: float = 0.33,
    evaluations: int = 30,
    seconds: float | None = None,
    batch_size: int = 1,
    seed: int = 0,
    advance: Callable[[str, int], None] | None = None,
    **call: Any,
) -> Profile:
    """Search the best schedule for each budget of computed steps, on the pipeline's own runs.

    One full run a prompt tells how wrong every forecast over every gap would be; dynamic programming over those errors
    gives paths to start from; moves of single steps, judged on true runs, improve them. What was found is then judged
    on prompts that the search has not seen. Region "step", so any pipeline is served.

    Args:
        pipeline: a diffusers pipeline that makes images or clips; nothing may be enabled on it.
        prompts: at least two, best a few dozen; the last of them are held out.
        steps: denoising steps of a run, ≥ 4.
        computed_steps: budgets to search for, each from 2 to `steps`; None for those of `BUDGETS`.
        held_out: share of the prompts that the search does not see, in (0, 1); at least one is.
        evaluations: schedules tried for each budget, each of which costs its share of a full run a prompt.
        seconds: wall-clock budget for the search; what is found by then is returned.
        batch_size: prompts a call.
        seed: of the noise, and of the order in which moves are tried; the same seed finds the same profile.
        advance: told what is going on, and the number of prompts, whenever some were generated.
        call: whatever else the pipeline is to be called with, guidance above all.

    Returns:
        The profile. After an interrupt it holds what had been found, and says so in `complete`.

    Raises:
        ConfigError: too few prompts, or an argument out of range.
        StateError: reuse is enabled already, or a full run is not finite.
        KeyboardInterrupt: interrupted before anything was found.
    """
    budgets = _checked(prompts, steps, computed_steps, held_out, evaluations, batch_size)
    deadline = None if seconds is None else time.monotonic() + seconds
    for_search = len(prompts) - max(1, round(held_out * len(prompts)))
    doing = "full runs"

    def told(count: int) -> None:
        if advance is not None:
            advance(doing, count)

    options: dict[str, Any] = {
        "batch_size": batch_size,
        "call": {"num_inference_steps": steps, **call},
        "advance": told,
    }
    searched = Judge(pipeline, prompts[:for_search], first_seed=seed, **options)
    unseen = Judge(pipeline, prompts[for_search:], first_seed=seed + for_search, **options)
    recorder = DistanceRecorder()
    with enable(pipeline, policy="never", forecaster=recorder, region="step"):
        searched.run_in_full()
    unseen.run_in_full()
    distances = recorder.distances(steps)
    paths = {
        (forecaster, emphasis): best_paths(gap_costs(distances, forecaster, emphasis), max(budgets))
        for emphasis in EMPHASES
        for forecaster in SLOPES
    }
    best: dict[int, tuple[Candidate, float]] = {}
    complete = True
    try:
        for number, budget in enumerate(budgets):
            doing = f"search, {budget} of {steps} steps"
            until = _share(deadline, len(budgets) - number)
            starts = [
                Candidate(steps=found[budget], forecaster=forecaster)
                for (forecaster, _), found in paths.items()
                if budget in found
            ]
            known = FixedSchedule(num_computed=budget, power=POWER).computed_steps(steps)
            starts.append(Candidate(steps=tuple(sorted(known)), forecaster="blend"))

            def keep(candidate: Candidate, score: float, budget: int = budget) -> None:
                if budget not in best or score > best[budget][1]:
                    best[budget] = (candidate, score)

            def late(until: float = until) -> bool:
                return time.monotonic() > until

            def score(candidate: Candidate) -> float:
                return statistics.fmean(searched.psnr(candidate.steps, candidate.forecaster))

            refine(
                score,
                dict.fromkeys(starts),
                total=steps,
                evaluations=evaluations,
                rng=random.Random(seed),
                found=keep,
                late=late,
            )
    except KeyboardInterrupt:
        if not best:
            raise
        complete = False
        logger.warning("interrupted: the profile holds the best schedules found so far")
    doing = "held-out prompts"
    plans = {
        budget: Plan(
            steps=candidate.steps,
            forecaster=candidate.forecaster,
            psnr=score,
            held_out=tuple(unseen.psnr(candidate.steps, candidate.forecaster)),
        )
        for budget, (candidate, score) in sorted(best.items())
    }
    model, digest, scheduler = fingerprint(pipeline)
    return Profile(
        model=model,
        config_digest=digest,
        scheduler=scheduler,
        num_inference_steps=steps,
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
) -> list[int]:
    if isinstance(prompts, str) or len(prompts) < 2:
        raise ConfigError(f"calibrate(prompts={prompts!r}): prompts must be a list of at least two, one is held out")
    for name, value, least in (("steps", steps, 4), ("evaluations", evaluations, 1), ("batch_size", batch_size, 1)):
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"calibrate({name}={value!r}): {name} must be a whole number of at least {least}")
    if not 0 < held_out < 1:
        raise ConfigError(f"calibrate(held_out={held_out!r}): held_out must be a share above 0 and below 1")
    wanted = {int(steps / budget) for budget in BUDGETS} if computed_steps is None else set(computed_steps)
    for count in wanted:
        if not isinstance(count, int) or not 2 <= count <= steps:
            raise ConfigError(
                f"calibrate(computed_steps={count!r}): each must be a whole number from 2 to steps={steps}"
            )
    return sorted(max(count, 2) for count in wanted)
