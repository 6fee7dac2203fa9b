"""``omnireuse.calibrate``: from a handful of full runs to the best schedule for every budget."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import inspect
import logging
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import torch

from omnireuse.diffusion.calibration.arguments import check_prompts, checked_budgets, checked_steps, number_searched
from omnireuse.diffusion.calibration.candidate import FITTED, Candidate
from omnireuse.diffusion.calibration.evaluator import FIT_PROMPTS, Evaluator, Scores
from omnireuse.diffusion.calibration.intervals import SLOPES
from omnireuse.diffusion.calibration.journal import Journal, Remembered
from omnireuse.diffusion.calibration.judge import Judge
from omnireuse.diffusion.calibration.measure import measured
from omnireuse.diffusion.calibration.profile import Plan, Profile
from omnireuse.diffusion.calibration.progress import Bar
from omnireuse.diffusion.calibration.ray_workers import RayWorkers, WorkersLostError
from omnireuse.diffusion.calibration.refine import refine
from omnireuse.diffusion.calibration.setup import VERSIONS, describe_setup
from omnireuse.diffusion.calibration.source import check_portable, make_judge
from omnireuse.diffusion.calibration.standing import Standing
from omnireuse.diffusion.calibration.starts import starts
from omnireuse.diffusion.calibration.workers import InProcess, Workers
from omnireuse.pipelines.source import Source

__all__ = ["calibrate"]

logger = logging.getLogger("omnireuse")


def calibrate(
    pipeline: Any,
    prompts: Sequence[str],
    *,
    steps: int | None = None,
    num_inference_steps: int | None = None,
    computed_steps: Iterable[int] | None = None,
    held_out: float = 0.33,
    evaluations: int = 30,
    margin: float = 1.0,
    seconds: float | None = None,
    batch_size: int = 1,
    fit_prompts: int = FIT_PROMPTS,
    seed: int = 0,
    workers: int = 0,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    pictures: Callable[[Any], Any] | None = None,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = True,
    watch: Callable[[Standing], None] | None = None,
    **call: Any,
) -> Profile:
    """Search the best schedule for each budget of computed steps, on the pipeline's own runs.

    Schedules to start from are the default, spreads that have done well, and the path that one full run a prompt shows
    to be cheapest; moves, judged on true runs, improve them. All but the default get weights that are fitted to them,
    where the scheduler allows it. What was found is then judged on prompts that the search has not seen. Region "step",
    so any pipeline is served.

    Args:
        pipeline: a pipeline that makes images or clips from prompts; nothing may be enabled on it. Or the folder of
            one, its id on a hub, "package:function", or a function without arguments that makes one: workers need one
            of these.
        prompts: at least two, best a few dozen; the last of them are held out.
        steps: denoising steps of a run, ≥ 4; 28 where nobody says otherwise.
        num_inference_steps: another name of `steps`.
        computed_steps: budgets to search for, each from 2 to `steps`; None for 1.5 to 4 times fewer.
        held_out: share of the prompts that the search does not see, in (0, 1); at least one is. A promise of quality
            takes three.
        evaluations: schedules tried for each budget, each of which costs its share of a full run a prompt.
        margin: a schedule takes another's place where its mean gain over the same prompts exceeds so many of its
            standard errors, ≥ 0. With few prompts a search without margin finds what suits these prompts only.
        seconds: wall-clock budget for the search; what is found by then is returned.
        batch_size: prompts a call.
        fit_prompts: how many of the prompts searched with weights are fitted on, ≥ 1. Where one call holds them all,
            the fit is also the judgement, and costs nothing more.
        seed: of the noise, and of the order in which moves are tried; the same seed finds the same profile.
        workers: processes that do the runs, through Ray: one a GPU, or one a CPU thread where there are none; 0 for
            this process. The profile is the same for any number of them.
        device: where a pipeline that is loaded here computes, as torch names it; None for CUDA or MPS where there is
            one, else the CPU.
        dtype: "bfloat16", "float16" or "float32" for a pipeline that is loaded here; None for bfloat16 on CUDA and MPS,
            else float32.
        pictures: from what the call returns to one array a prompt, (height, width, channels) in 0…1, a clip with its
            frames first; None where the result is read as pipelines of diffusers return it. Pipelines that take
            `output_type` are asked for "np".
        journal: a file in which scores are kept as they come. A search that was cut off and is begun again with the
            same journal goes on where it was; its full runs are made again. One process at a time may use it.
        progress: whether to show a bar, on stderr or in the notebook.
        watch: told where the search stands whenever it has got on.
        call: whatever else the pipeline is to be called with, guidance above all.

    Returns:
        The profile. After an interrupt, or when workers keep dying, it holds what had been found, and says so in
        `complete`.

    Raises:
        ConfigError: too few prompts, an argument out of range or one that is set here (`prompt`, `generator`,
            `output_type`, `return_dict`), a pipeline that cannot be loaded or whose results are not safely read as
            pictures, workers for one that they cannot load, or the journal of another search.
        UnknownNameError: an argument that the call of the pipeline does not take.
        MissingExtraError: workers without Ray.
        StateError: reuse is enabled already, a full run is not finite, or workers keep dying before anything was found.
        KeyboardInterrupt: interrupted before anything was found.
    """
    steps = checked_steps(steps, num_inference_steps, call)
    check_prompts(prompts)
    counts = {"evaluations": evaluations, "batch_size": batch_size, "fit_prompts": fit_prompts, "workers": workers}
    budgets = checked_budgets(computed_steps, steps, margin, seconds, seed=seed, **counts)
    for_search = number_searched(len(prompts), held_out)
    full_call = {"num_inference_steps": steps, **call}
    source = Source(given=pipeline, device=device, dtype=dtype)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Bar(shown=progress))
        judging = {"first_seed": seed, "call": full_call, "batch_size": batch_size, "pictures": pictures}
        own = tuple(inspect.signature(calibrate).parameters)
        hired = _hired(source, list(prompts), workers, **judging, known=own)
        stack.callback(hired.close)
        description = _ask(hired, "description")
        description += f"; {steps} steps, {for_search} prompts searched with, {len(prompts) - for_search} held out"
        logger.info("calibrate: %s", description)
        setup = {}
        if journal is not None:
            setup = describe_setup(
                _ask(hired, "content"),
                prompts,
                for_search=for_search,
                batch_size=batch_size,
                fit_prompts=fit_prompts,
                seed=seed,
                call=full_call,
                dtype=_ask(hired, "dtype"),
                pictures=pictures,
            )
        kept = stack.enter_context(contextlib.closing(Journal(journal, setup)))
        begun, runs_before = time.monotonic(), kept.runs
        deadline = None if seconds is None else begun + seconds
        searched = Evaluator(hired, range(for_search), batch_size=batch_size, steps=steps, fit_prompts=fit_prompts)
        unseen = Evaluator(hired, range(for_search, len(prompts)), batch_size=batch_size, steps=steps)
        # At most, with weights fitted to every schedule.
        a_schedule = for_search + min(for_search, fit_prompts)
        ahead = len(prompts) + sum(
            budget / steps * (evaluations * a_schedule + len(prompts) - for_search) for budget in budgets
        )
        ahead -= kept.known_runs

        def tell(doing: str, done: int, total: int, best: float | None = None) -> None:
            runs = kept.runs - runs_before
            left = max(0.0, ahead - runs)
            speed = (time.monotonic() - begun) / runs if runs else None
            standing = Standing(
                pipeline=description,
                doing=doing,
                done=done,
                total=total,
                best=best,
                runs=kept.runs,
                runs_left=left,
                seconds_left=None if speed is None else speed * left,
            )
            bar(standing)
            if watch is not None:
                watch(standing)

        def ran_in_full(count: int) -> None:
            kept.spend(count)
            tell("full runs", round(searched.runs + unseen.runs), len(prompts))

        tell("full runs", 0, len(prompts))
        recorded = searched.run_in_full(record=True, advance=ran_in_full)
        unseen.run_in_full(record=False, advance=ran_in_full)
        measurements = measured(searched.seen, unseen.seen, recorded)
        forecasters = (FITTED,) if searched.can_fit else SLOPES
        begin = starts(recorded, budgets, steps, can_fit=searched.can_fit)
        best: dict[int, tuple[Candidate, Scores]] = {}
        judged: dict[Candidate, Scores] = {}
        complete = True
        to_search = Remembered(searched, kept, "searched")
        to_judge = Remembered(unseen, kept, "held out")
        try:
            for number, budget in enumerate(budgets):
                leaders = refine(
                    to_search,
                    begin[budget],
                    forecasters=forecasters,
                    total=steps,
                    evaluations=evaluations,
                    margin=margin,
                    rng=random.Random(seed),
                    late=_late(deadline, len(budgets) - number),
                )
                with contextlib.closing(leaders):
                    for done, leader in enumerate(leaders, 1):
                        best[budget] = leader
                        tell(f"{budget} of {steps} steps", done, evaluations, statistics.fmean(leader[1]))
        except (KeyboardInterrupt, WorkersLostError) as reason:
            if not best:
                raise
            complete = False
            _say_cut_short(reason, "the profile holds the best schedules found so far")
        found = [candidate for candidate, _ in best.values()]
        try:
            for candidate, scores in to_judge.scores(found, to_search.fitted(found)):
                judged[candidate] = scores
                tell("held-out prompts", len(judged), len(best))
        except (KeyboardInterrupt, WorkersLostError) as reason:
            complete = False
            _say_cut_short(reason, "a plan that was not judged on the held-out prompts promises nothing")
        model, digest, scheduler = _ask(hired, "fingerprint")
        computes_in = _ask(hired, "dtype")
        cost = kept.runs
    return Profile(
        model=model,
        config_digest=digest,
        scheduler=scheduler,
        dtype=computes_in,
        num_inference_steps=steps,
        at=tuple(recorded[0].at.tolist()),
        call={name: repr(value) for name, value in call.items()},
        prompts_digest=hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16],
        num_prompts=(for_search, len(prompts) - for_search),
        seed=seed,
        created=datetime.date.today().isoformat(),
        versions={name: version(name) for name in VERSIONS},
        cost_in_runs=round(cost, 1),
        complete=complete,
        measured=measurements,
        plans={
            budget: Plan(
                steps=candidate.steps,
                forecaster=candidate.forecaster,
                weights=searched.weights[candidate].weights if candidate.forecaster == FITTED else (),
                psnr=statistics.fmean(scores),
                held_out=judged.get(candidate, ()),
            )
            for budget, (candidate, scores) in sorted(best.items())
            if candidate.forecaster != FITTED or candidate in searched.weights
        },
    )


def _hired(source: Source, prompts: Sequence[str], workers: int, **judging: Any) -> InProcess | RayWorkers:
    if not workers:
        return InProcess(Judge(source.load(), prompts, **judging))
    check_portable(source)
    return RayWorkers(functools.partial(make_judge, source, prompts, judging), workers)


def _ask(workers: Workers, method: str) -> Any:
    """What any one of them says."""
    ((_, answer),) = workers.run(method, [()])
    return answer


def _say_cut_short(reason: BaseException, what_is_left: str) -> None:
    if isinstance(reason, KeyboardInterrupt):
        logger.warning("interrupted: %s", what_is_left)
    else:
        logger.error("%s: %s", reason, what_is_left)


def _late(deadline: float | None, budgets: int) -> Callable[[], bool]:
    """Whether the next of so many budgets has had its part of what is left of the time."""
    now = time.monotonic()
    until = math.inf if deadline is None else now + (deadline - now) / budgets
    return lambda: time.monotonic() > until
