"""``omnireuse.calibrate``: tuning on many prompts, for several budgets at once, with a promise on held-out prompts."""

from __future__ import annotations

import hashlib
import inspect
import logging
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

import msgspec
import torch
from tqdm.auto import tqdm

from omnireuse import messages
from omnireuse.base.validation import check_value, finite, whole
from omnireuse.calibration.runs import PromptRuns
from omnireuse.errors import ConfigError
from omnireuse.hooks.denoisers import describe
from omnireuse.named.measuring import measured
from omnireuse.pipelines.call import check_prompts, refuse_reserved
from omnireuse.pipelines.source import Source
from omnireuse.planning.path import OutputProducts
from omnireuse.planning.planner import Planner
from omnireuse.policies.spread import Spread
from omnireuse.profiles.conditions import watch_of
from omnireuse.profiles.measurements import Measurements
from omnireuse.profiles.origin import Origin
from omnireuse.profiles.plan import Plan
from omnireuse.profiles.profile import FEWEST_HELD_OUT, Profile
from omnireuse.tuning.budget import Budget
from omnireuse.tuning.search import GivenSteps, closest
from omnireuse.tuning.trials import MeasuredCall, finished

__all__ = ["FIT_PROMPTS", "calibrate", "held_out_last", "number_searched"]

logger = logging.getLogger("omnireuse")

T = TypeVar("T")

STEPS = 28
"""Default number of denoising steps of a run."""
BUDGETS = (1.5, 2.0, 2.5, 3.0, 4.0)
"""Default budgets: steps over computed steps."""
FIT_PROMPTS = 5
"""Default number of prompts that schedules are tried on, and their weights fitted: a few numbers for each step need no
more."""
GROWTHS: tuple[float, ...] = (2.0, 0.0, 4.0)
"""How errors grow on their way to the final latents (`Planner`), which full runs do not show: trials for the smallest
budget decide, because growth counts most there and runs cost least."""
BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f} of at most {total:.0f} full runs [{elapsed}<{remaining}]"


def calibrate(
    pipeline: object,
    prompts: Sequence[str],
    *,
    steps: int | None = None,
    num_inference_steps: int | None = None,
    computed_steps: Iterable[int] | None = None,
    held_out: float = 0.33,
    batch_size: int = 1,
    fit_prompts: int = FIT_PROMPTS,
    seed: int = 0,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    pictures: Callable[[Any], Any] | None = None,
    progress: bool = True,
    **call: object,
) -> Profile:
    """Search the best schedule for each budget of computed steps, on the pipeline's own runs.

    The full runs show how alike the outputs of all steps are, and with that how much error each schedule leaves. So
    schedules are planned without further runs. A few runs then fit the weights, if the scheduler allows it, and
    decide between plans if there are several. The results are evaluated on prompts that the search has not seen.

    Args:
        pipeline: a pipeline that makes images or clips from prompts, with nothing enabled on it. Or the folder of one,
            its id on a hub, "package:function", or a function without arguments that makes one.
        prompts: at least two, best a few dozen; every few of them, one is held out.
        steps: denoising steps of a run, ≥ 4; the default is 28.
        num_inference_steps: another name of `steps`.
        computed_steps: budgets to search for, each from 2 to `steps`; None for 1.5 to 4 times fewer than all.
        held_out: share of the prompts that the search does not see, in (0, 1); at least one prompt is held out. A
            promise of quality needs five, and is the tighter the more there are.
        batch_size: prompts in a call.
        fit_prompts: how many of the prompts for the search each schedule is tried on, ≥ 1, rounded up to whole calls.
            The same runs fit its weights.
        seed: of the noise. The same seed finds the same profile.
        device: where a pipeline that is loaded here computes; None for CUDA or MPS if there is one, else the CPU.
        dtype: "bfloat16", "float16" or "float32" for a pipeline that is loaded here; None for bfloat16 on CUDA and MPS,
            else float32.
        pictures: from what the call returns to one array for each prompt, (height, width, channels) in 0…1, a clip with
            its frames first; None for results in the form of diffusers. Pipelines that take `output_type` get "np".
        progress: whether to show a bar, on stderr or in the notebook.
        call: further arguments of the pipeline's call, guidance above all.

    Returns:
        The profile. After an interrupt it holds what was found, with `complete` False.

    Raises:
        ConfigError: too few prompts, an argument out of range or one that is set here (`prompt`, `generator`,
            `output_type`, `return_dict`), or a pipeline that cannot be loaded or whose results cannot safely be read as
            pictures.
        UnknownNameError: an argument that the call of the pipeline does not take.
        StateError: reuse is enabled already, or a full run is not finite.
        KeyboardInterrupt: interrupted before anything was found.
    """
    total = _checked_steps(steps, num_inference_steps, call)
    check_prompts("calibrate", prompts, least=2, why=", one of which is held out")
    for_search = number_searched(len(prompts), held_out)
    texts = held_out_last(list(prompts), for_search)
    budgets = _checked_budgets(computed_steps, total)
    for name, value, least in (("batch_size", batch_size, 1), ("fit_prompts", fit_prompts, 1), ("seed", seed, 0)):
        check_value("calibrate", name, value, whole(least))
    source = Source(given=pipeline, device=device, dtype=dtype)
    with tqdm(desc="loading", bar_format="{desc} [{elapsed}]", disable=not progress, file=sys.stderr) as bar:
        runs = PromptRuns(
            source.load(),
            texts,
            call={"num_inference_steps": total, **call},
            seed=seed,
            batch_size=batch_size,
            pictures=pictures,
            known=tuple(inspect.signature(calibrate).parameters),
        )
        conditions, origin = watch_of(runs.pipeline).now(), Origin.of(runs.pipeline)
        search = _Search(runs, bar, for_search, budgets, batch_size, fit_prompts)
        unseen = len(texts) - for_search
        text = (
            f"{describe(runs.pipeline)}; {total} steps, {for_search} prompts searched with, {unseen} held out, "
            f"at most {search.most_runs:.0f} full runs in all"
        )
        logger.info("calibrate: %s", text)
        if progress:
            bar.write(text, file=bar.fp)
        bar.bar_format = BAR
        bar.reset(total=max(round(search.most_runs), 1))
        search.run_in_full()
        for do, what_is_left in (
            (search.find_best, "the profile holds the best schedules found so far"),
            (search.judge, "a plan that was not judged on the held-out prompts promises nothing"),
        ):
            try:
                do()
            except KeyboardInterrupt:
                if not search.plans:
                    raise
                search.complete = False
                logger.warning("interrupted: %s", what_is_left)
        # A search may take fewer runs than expected.
        bar.total = max(bar.n, 1)
    chosen = {
        "steps": total,
        "computed_steps": budgets,
        "held_out": round(unseen / len(texts), 3),
        "batch_size": batch_size,
        "fit_prompts": fit_prompts,
        "seed": seed,
        **call,
    }
    return Profile.of(
        conditions,
        origin,
        command=f"omnireuse.calibrate(pipe, prompts, {', '.join(f'{name}={each!r}' for name, each in chosen.items())})",
        num_inference_steps=total,
        coordinates=runs.coordinates,
        call={name: repr(value) for name, value in call.items()},
        prompts_digest=hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16],
        num_prompts=(for_search, unseen),
        seed=seed,
        cost_in_runs=round(search.cost, 1),
        complete=search.complete,
        measured=search.measured,
        plans=search.plans,
    )


class _Search:
    """Full runs, the best plan for each budget by trials as tuning makes them, and its quality on other prompts.

    Args:
        runs: of the pipeline and all prompts.
        bar: shows what is done, and its cost in full runs of one prompt.
        for_search: how many of the prompts, from the first, are searched with; the others are held out.
        budgets: numbers of computed steps, in rising order.
    """

    def __init__(
        self, runs: PromptRuns, bar: Any, for_search: int, budgets: list[int], batch_size: int, fit_prompts: int
    ) -> None:
        self._runs, self._bar, self._budgets, self.cost = runs, bar, budgets, 0.0
        number = len(runs.prompts)
        self._for_search, self._unseen = (
            [range(at, min(at + batch_size, end)) for at in range(start, end, batch_size)]
            for start, end in ((0, for_search), (for_search, number))
        )
        self._tried = self._for_search[: -(-min(fit_prompts, for_search) // batch_size)]
        """The calls that plans are tried on."""
        self._calls = list[MeasuredCall]()
        self._products = list[OutputProducts]()
        self.plans: dict[int, Plan] = {}
        """The best for each budget so far."""
        self.complete = True
        trials = sum(budgets) + (len(GROWTHS) - 1) * budgets[0]
        judging = sum(budgets) * (number - for_search)
        self.most_runs = number + (trials * self._tried[-1].stop + judging) / runs.steps

    @property
    def measured(self) -> Measurements:
        """What the blocks have shown."""
        searched, held_out = ([self._runs.seen[each] for each in those] for those in (self._for_search, self._unseen))
        return measured(searched, held_out, self._runs.blocks_unseen)

    def run_in_full(self) -> None:
        """Run every prompt in full, and record the runs for the search."""
        for batch in (*self._for_search, *self._unseen):
            full = self._runs.full_run(batch, record=batch in self._for_search)
            if full is not None:
                self._products.append(full.products)
                if batch in self._tried:
                    self._calls.append(MeasuredCall(replay=batch, full=full))
            self._spend("full runs", len(batch))

    def find_best(self) -> None:
        """Find the plan for each budget: the default's steps if no weights can be fitted."""
        noises = self._runs.coordinates
        if len(self._products) < len(self._for_search):
            for budget in self._budgets:
                steps = tuple(sorted(Spread(num_computed=budget).schedule(self._runs.steps, noises)))
                self.plans[budget] = Plan(steps=steps, forecaster="blend", psnr=None, held_out=())
            return
        growths = GROWTHS
        planners = {each: Planner(self._products, noises, fewest=self._budgets[0], growth=each) for each in growths}
        for budget in self._budgets:
            schedules: dict[tuple[int, ...], float] = {}
            for growth in growths:
                schedules.setdefault(planners[growth].best(budget), growth)
            self.plans[budget] = found = self._closest(list(schedules))
            growths = (schedules[found.steps],)

    def _closest(self, schedules: list[tuple[int, ...]]) -> Plan:
        """The plan whose pictures are closest on average, by trials of schedules with so many computed steps."""
        *others, steps = schedules
        budget = Budget(steps=steps, reuses=False, noises=self._runs.coordinates)
        search = GivenSteps(budget, self._calls, others, self._tried[-1].stop, most_work=math.inf)
        followed = 0
        while (due := search.due(self._calls, is_whole=True)) is not None:
            finished(due.make(self._runs))
            before, followed = followed, sum(len(each.closeness) for each in search.others)
            self._spend(f"{len(steps)} of {self._runs.steps} steps", (followed - before) * due.cost)
        best = closest(search.others)
        assert best is not None, "schedules were given"
        plan = best.plan(closeness=tuple(best.closeness))
        return msgspec.structs.replace(plan, psnr=statistics.fmean(best.closeness))

    def judge(self) -> None:
        """Score the best plans on the held-out prompts."""
        for budget, plan in list(self.plans.items()):
            strategy, scores = plan.strategy(self._runs.coordinates), list[float]()
            for batch in self._unseen:
                scores += self._runs.score(strategy, batch)
                self._spend("held-out prompts", len(batch) * budget / self._runs.steps)
            self.plans[budget] = msgspec.structs.replace(plan, held_out=tuple(scores))

    def _spend(self, doing: str, runs: float) -> None:
        self.cost += runs
        self._bar.set_description_str(doing, refresh=False)
        self._bar.update(runs)


def held_out_last(prompts: Sequence[T], for_search: int) -> list[T]:
    """The prompts in an order in which the held-out ones come last: one out of each stretch of the list, as lists are
    often sorted by kind, and a promise must hold for all kinds."""
    unseen = len(prompts) - for_search
    chosen = {(2 * place + 1) * len(prompts) // (2 * unseen) for place in range(unseen)}
    return [
        *(each for place, each in enumerate(prompts) if place not in chosen),
        *(each for place, each in enumerate(prompts) if place in chosen),
    ]


def number_searched(prompts: int, held_out: float) -> int:
    """How many of the prompts are for the search. Warns if the others are too few for a promise.

    Raises:
        ConfigError: a share outside of (0, 1).
    """
    check_value("calibrate", "held_out", held_out, finite("be a share above 0 and below 1", lambda x: 0 < x < 1))
    unseen = _number_held_out(prompts, held_out)
    if unseen < FEWEST_HELD_OUT:
        logger.warning(
            "calibrate: with %d of %d prompts held out, the profile promises no quality, which takes %d held-out "
            "prompts: give at least %d prompts with held_out=%g",
            unseen,
            prompts,
            FEWEST_HELD_OUT,
            next(number for number in count(2) if _number_held_out(number, held_out) >= FEWEST_HELD_OUT),
            held_out,
        )
    if prompts - unseen == 1:
        logger.warning("calibrate: one prompt to search with cannot tell a gain from noise; give more prompts")
    return prompts - unseen


def _number_held_out(prompts: int, held_out: float) -> int:
    return min(max(1, round(held_out * prompts)), prompts - 1)


def _checked_steps(steps: int | None, num_inference_steps: int | None, call: Mapping[str, Any]) -> int:
    refuse_reserved("calibrate", call)
    if steps is not None and num_inference_steps is not None and steps != num_inference_steps:
        raise ConfigError(messages.STEPS_TWICE, steps=steps, other=num_inference_steps)
    name, given = ("num_inference_steps", num_inference_steps) if steps is None else ("steps", steps)
    found = STEPS if given is None else given
    check_value("calibrate", name, found, whole(4))
    return found


def _checked_budgets(computed_steps: Iterable[int] | None, steps: int) -> list[int]:
    """The budgets in rising order; those of `BUDGETS` for None."""
    if computed_steps is None:
        return sorted({max(int(steps / budget), 2) for budget in BUDGETS})
    given = computed_steps
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    budgets = list(given) if is_list else []
    if not budgets or not all(isinstance(number, int) and 2 <= number <= steps for number in budgets):
        write = f"[{given}]" if isinstance(given, int) else "a list"
        raise ConfigError(messages.NO_BUDGETS, given=given, steps=steps, write=write)
    return sorted(set(budgets))
